//! A port that is free.
//!
//! Taken from below the range that systems use for outgoing connections. Inside that range a
//! client that tries again and again to reach a stopped server can connect to itself, and then
//! holds the port that the server wants back.

use std::net::{Ipv4Addr, TcpListener};

use rand::RngExt;

const RANGE: std::ops::Range<u16> = 11_000..32_000;

/// A port on loopback that nobody listens on at this moment. Another program can still take it
/// before its user does: whoever binds it must be ready to ask for another.
pub(crate) fn free_port() -> Option<u16> {
    (0..200)
        .map(|_| rand::rng().random_range(RANGE))
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
}
