//! Rendezvous hashing: which of some members something belongs to.
//!
//! When one of k members leaves, only what belonged to it moves, about evenly to the others.
//! *Invariant: everybody comes to the same answer, whatever its version*: the function is written
//! down here and never changed.

/// FNV-1a, 64 bits, its end mixed: ids that differ in one letter have nothing in common.
pub(crate) fn hash(text: &str) -> u64 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mix(text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fnv))
}

/// How much what has the hash `key` belongs to the member with the hash `member`; it is the
/// highest's.
pub(crate) fn score(member: u64, key: u64) -> u64 {
    mix(member ^ key)
}

/// The finalizer of SplitMix64: each bit of the input moves about half of the output's.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
