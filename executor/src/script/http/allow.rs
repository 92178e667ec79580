//! Which hosts and addresses requests may reach: the operator's list, pure.
//!
//! *Invariant: an address that is not public is reached only when a rule names it*, or its network:
//! a name that leads to it is not enough, as whoever holds the name may turn it anywhere. So the
//! cloud's metadata, the machine itself and the network around it are closed by default.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The rules. Empty: nothing is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList(Vec<Rule>);

/// A rule that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no host, address or network; write api.example.com, api.example.com:8443, *.example.com, 10.0.0.0/8, 10.1.2.3:8080, [::1]:8080, or * for every public host"
)]
pub struct BadRule(String);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    /// A name, wherever it leads, as long as that is public.
    Host(Pattern, Option<u16>),
    /// Addresses, under whatever name.
    Net(Net, Option<u16>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Any,
    Exact(String),
    /// Any name that ends with this, which begins with a dot.
    Under(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Net {
    address: IpAddr,
    bits: u8,
}

/// Why an address is not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    /// No rule names the host, nor the address.
    Unlisted,
    /// The host is named, and leads to an address that is not public.
    NotPublic,
}

impl AllowList {
    /// Reads rules.
    ///
    /// # Errors
    /// [`BadRule`], the first.
    pub fn new<S: AsRef<str>>(rules: impl IntoIterator<Item = S>) -> Result<Self, BadRule> {
        rules.into_iter().map(|rule| rule.as_ref().parse()).collect::<Result<_, _>>().map(Self)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it makes sense to ask where the name `host` leads.
    pub(super) fn may_look_up(&self, host: &str, port: u16) -> bool {
        self.names(host, port) || self.0.iter().any(|rule| matches!(rule, Rule::Net(_, _)))
    }

    /// Whether a connection to `address` for `host` may be made.
    pub(super) fn check(&self, host: &str, address: SocketAddr) -> Result<(), Denied> {
        let ip = address.ip().to_canonical();
        let listed = self.0.iter().any(|rule| match rule {
            Rule::Net(net, port) => net.contains(ip) && fits(*port, address.port()),
            Rule::Host(_, _) => false,
        });
        match (listed, self.names(host, address.port())) {
            (true, _) => Ok(()),
            (false, true) if is_public(ip) => Ok(()),
            (false, true) => Err(Denied::NotPublic),
            (false, false) => Err(Denied::Unlisted),
        }
    }

    fn names(&self, host: &str, port: u16) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        self.0.iter().any(|rule| match rule {
            Rule::Host(pattern, wanted) => pattern.matches(&host) && fits(*wanted, port),
            Rule::Net(_, _) => false,
        })
    }
}

fn fits(wanted: Option<u16>, port: u16) -> bool {
    wanted.is_none_or(|wanted| wanted == port)
}

impl Pattern {
    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(name) => host == name,
            Self::Under(end) => host.len() > end.len() && host.ends_with(end.as_str()),
        }
    }
}

impl Net {
    fn contains(self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(net), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                net.to_bits() & mask == ip.to_bits() & mask
            }
            (IpAddr::V6(net), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                net.to_bits() & mask == ip.to_bits() & mask
            }
            _ => false,
        }
    }
}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let bad = || BadRule(text.to_owned());
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| bad())?;
            let bits: u8 = bits.parse().map_err(|_| bad())?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let net = Net { address, bits };
            return if bits <= most { Ok(Self::Net(net, None)) } else { Err(bad()) };
        }
        let one = |address: IpAddr| {
            let address = address.to_canonical();
            Net { address, bits: if address.is_ipv4() { 32 } else { 128 } }
        };
        if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(Self::Net(one(address), None));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self::Net(one(address.ip()), Some(address.port())));
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| bad())?)),
            None => (text, None),
        };
        let host = host.to_ascii_lowercase();
        let pattern = match host.strip_prefix('*') {
            Some("") => Pattern::Any,
            Some(end) if end.strip_prefix('.').is_some_and(is_host) => Pattern::Under(end.into()),
            None if is_host(&host) => Pattern::Exact(host),
            _ => return Err(bad()),
        };
        Ok(Self::Host(pattern, port))
    }
}

fn is_host(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    // `1.2.3` and `0x7f` would be read as addresses in a URL.
    let last = name.rsplit('.').next().unwrap_or_default();
    name.split('.').all(label) && last.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

/// Whether anybody on the internet could reach it.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || ip.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (18..20).contains(&b));
    !special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, high, low] = ip.segments();
    let inside = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    // Gateways that carry on to an IPv4 address.
    if (a, b, c, d, e, f) == (0x64, 0xff9b, 0, 0, 0, 0) {
        return is_public_v4(inside(high, low));
    }
    if a == 0x2002 {
        return is_public_v4(inside(b, c));
    }
    let teredo_and_the_like = a == 0x2001 && b < 0x200;
    let documentation = (a == 0x2001 && b == 0xdb8) || (a == 0x3fff && b < 0x1000);
    (0x2000..0x4000).contains(&a) && !teredo_and_the_like && !documentation
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unlisted => "this executor's operator did not list it",
            Self::NotPublic => {
                "which is no public address, and this executor's operator listed the name only, not the address"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Denied::{NotPublic, Unlisted};

    fn check(rules: &[&str], host: &str, address: &str) -> Result<(), Denied> {
        AllowList::new(rules).unwrap().check(host, address.parse().unwrap())
    }

    #[test]
    fn a_name_opens_what_is_public_and_a_network_what_is_inside() {
        let public = "93.184.215.14:443";
        for (rules, host, address, result) in [
            (vec![], "example.com", public, Err(Unlisted)),
            (vec!["example.com"], "example.com", public, Ok(())),
            (vec!["example.com"], "EXAMPLE.com.", public, Ok(())),
            (vec!["example.com"], "www.example.com", public, Err(Unlisted)),
            (vec!["example.com"], "badexample.com", public, Err(Unlisted)),
            (vec!["*.example.com"], "a.b.example.com", public, Ok(())),
            (vec!["*.example.com"], "example.com", public, Err(Unlisted)),
            (vec!["*.example.com"], "badexample.com", public, Err(Unlisted)),
            (vec!["example.com:8443"], "example.com", public, Err(Unlisted)),
            (vec!["example.com:443"], "example.com", public, Ok(())),
            (vec!["*"], "anything.org", public, Ok(())),
            (vec!["*"], "93.184.215.14", public, Ok(())),
            (vec!["*"], "anything.org", "10.0.0.1:80", Err(NotPublic)),
            (vec!["*"], "anything.org", "169.254.169.254:80", Err(NotPublic)),
            (vec!["intra.example.com"], "intra.example.com", "10.1.2.3:80", Err(NotPublic)),
            (vec!["intra.example.com", "10.1.0.0/16"], "intra.example.com", "10.1.2.3:80", Ok(())),
            (vec!["10.1.0.0/16"], "whatever", "10.1.2.3:80", Ok(())),
            (vec!["10.1.0.0/16"], "whatever", "10.2.2.3:80", Err(Unlisted)),
            (vec!["10.1.0.0/16"], "whatever", "[::ffff:10.1.2.3]:80", Ok(())),
            (vec!["127.0.0.1:8080"], "127.0.0.1", "127.0.0.1:8080", Ok(())),
            (vec!["127.0.0.1:8080"], "127.0.0.1", "127.0.0.1:8081", Err(Unlisted)),
            (vec!["[::1]:8080"], "::1", "[::1]:8080", Ok(())),
            (vec!["fd00::/8"], "x", "[fd12::1]:80", Ok(())),
            (vec!["0.0.0.0/0"], "x", "[fd12::1]:80", Err(Unlisted)),
            (vec!["0.0.0.0/0"], "x", "127.0.0.1:80", Ok(())),
        ] {
            assert_eq!(check(&rules, host, address), result, "{rules:?} {host} {address}");
        }
    }

    #[test]
    fn what_is_not_public_is_known() {
        for ip in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.31.0.1",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "203.0.113.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001:db8::1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2001::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
        ] {
            assert!(!is_public(ip.parse::<IpAddr>().unwrap().to_canonical()), "{ip}");
        }
        for ip in ["1.1.1.1", "100.63.0.1", "172.32.0.1", "2606:4700::1111", "64:ff9b::101:101"] {
            assert!(is_public(ip.parse().unwrap()), "{ip}");
        }
    }

    #[test]
    fn a_rule_that_means_nothing_is_refused() {
        for rule in [
            "",
            "https://example.com",
            "example.com/path",
            "10.0.0.0/33",
            "10.0.0/8",
            "a b",
            "*x.com",
            "a.*",
            "example.com:",
            "example.com:99999",
            "*.",
            "1.2.3",
            "exämple.com",
        ] {
            assert!(AllowList::new([rule]).is_err(), "{rule}");
        }
    }
}
