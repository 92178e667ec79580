//! Sizes of streams, and how often they are stored, as people write them.

/// The smallest stream that makes sense: it must hold some of the largest messages.
const LEAST: i64 = 4 << 20;

/// More than any disk; a slip of the keyboard.
const MOST: i64 = 64 << 40;

/// A size, as `256MiB`, `2GiB` or a plain number of bytes.
pub(super) fn bytes(text: &str) -> Result<i64, String> {
    let wrong = || format!("{text:?} is no size; write it like 256MiB or 2GiB, from 4MiB to 64TiB");
    let text_of_number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[text_of_number.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "kib" => 10,
        "mib" => 20,
        "gib" => 30,
        "tib" => 40,
        _ => return Err(wrong()),
    };
    let number = text_of_number.trim();
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let size = number.checked_mul(1 << shift).filter(|size| (LEAST..=MOST).contains(size));
    size.ok_or_else(wrong)
}

/// A size that only TaskParty goes by, and no stream.
pub(super) fn room(text: &str) -> Result<u64, String> {
    bytes(text).map(i64::unsigned_abs)
}

/// How often everything is stored: a number of servers that has a majority.
pub(super) fn replicas(text: &str) -> Result<usize, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err(format!("{text:?} is no number of replicas; write 1, 3 or 5")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskparty_nats::topology::TopologyConfig;

    #[test]
    fn sizes_are_bytes_with_a_binary_unit() {
        for (text, size) in [
            ("4MiB", 4 << 20),
            ("4194304", 4 << 20),
            ("5000000b", 5_000_000),
            ("2 gib", 2 << 30),
            ("64TiB", 64 << 40),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for bad in ["", "MiB", "1KiB", "65TiB", "2GB", "-4MiB", "1.5GiB", "0", "99999999999TiB"] {
            assert!(bytes(bad).unwrap_err().contains("2GiB"), "{bad}");
        }
        assert_eq!((replicas("3"), replicas("2").is_err()), (Ok(3), true));
    }

    #[test]
    fn the_defaults_that_are_shown_are_those_that_hold() {
        let config = TopologyConfig::default();
        for (name, size) in [
            ("dispatch_bytes", config.dispatch_bytes),
            ("results_bytes", config.results_bytes),
            ("logs_bytes", config.logs_bytes),
            ("triggers_bytes", i64::try_from(config.triggers_bytes).unwrap()),
            ("alerts_bytes", config.alerts_bytes),
        ] {
            let setting = super::super::SETTINGS.iter().find(|setting| setting.name == name);
            assert_eq!(bytes(setting.unwrap().default.unwrap()), Ok(size), "{name}");
        }
    }
}
