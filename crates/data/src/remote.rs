//! Fetches images from other machines, for users who allow it.
//!
//! Takes an http(s) address and gives the bytes of the answer: at most [`MAX_IMAGE_BYTES`], in a few tries of
//! at most [`TIMEOUT`] each. Only public addresses are reached: every name is resolved here and refused if
//! any of its addresses is private, and the connection uses the very addresses that were checked. Redirects
//! are checked the same way.

use crate::{error::BadRow, source::MAX_IMAGE_BYTES};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    thread,
    time::Duration,
};
use ureq::{
    Agent,
    config::Config,
    http::Uri,
    unversioned::{
        resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver},
        transport::{DefaultConnector, NextTimeout},
    },
};

/// For one try at an image, redirects included.
const TIMEOUT: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: u32 = 5;
/// One lost connection among a million images must not end a run.
const TRIES: u32 = 3;
/// Before the second try; twice as long before the third.
const PAUSE: Duration = Duration::from_millis(500);

/// Fetches remote images.
#[derive(Debug, Clone)]
pub(crate) struct RemoteImages {
    agent: Agent,
    limit: u64,
    pause: Duration,
}

impl Default for RemoteImages {
    fn default() -> Self {
        Self { pause: PAUSE, ..Self::new(is_public, TIMEOUT, MAX_IMAGE_BYTES) }
    }
}

impl RemoteImages {
    fn new(allowed: fn(IpAddr) -> bool, timeout: Duration, limit: u64) -> Self {
        // No proxy: it would resolve names where they are not checked.
        let config = Agent::config_builder()
            .proxy(None)
            .max_redirects(MAX_REDIRECTS)
            .timeout_global(Some(timeout))
            .user_agent(concat!("model-garden/", env!("CARGO_PKG_VERSION")))
            .build();
        let resolver = CheckedResolver::new(allowed);
        Self {
            agent: Agent::with_parts(config, DefaultConnector::default(), resolver),
            limit,
            pause: Duration::ZERO,
        }
    }

    /// The bytes behind an address.
    pub fn fetch(&self, url: &str) -> Result<Vec<u8>, BadRow> {
        let mut read = self.try_once(url);
        for earlier in 1..TRIES {
            if !read.as_ref().is_err_and(may_pass) {
                break;
            }
            thread::sleep(earlier * self.pause);
            read = self.try_once(url);
        }
        read.map_err(|error| BadRow::Remote { url: url.to_owned(), reason: error.to_string() })
    }

    fn try_once(&self, url: &str) -> Result<Vec<u8>, ureq::Error> {
        self.agent.get(url).call()?.body_mut().with_config().limit(self.limit).read_to_vec()
    }
}

/// Whether the same request is likely to succeed on another try.
fn may_pass(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Timeout(_) | ureq::Error::Io(_) | ureq::Error::ConnectionFailed => true,
        ureq::Error::StatusCode(code) => *code == 429 || *code >= 500,
        _ => false,
    }
}

/// Resolves names for `ureq`, and refuses those that lead to addresses that are not allowed.
#[derive(Debug)]
pub struct CheckedResolver {
    resolver: DefaultResolver,
    allowed: fn(IpAddr) -> bool,
}

impl CheckedResolver {
    /// A resolver that gives a name's addresses if `allowed` holds for all of them.
    pub fn new(allowed: fn(IpAddr) -> bool) -> Self {
        Self { resolver: DefaultResolver::default(), allowed }
    }
}

impl Resolver for CheckedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let addresses = self.resolver.resolve(uri, config, timeout)?;
        match addresses.iter().find(|address| !(self.allowed)(address.ip())) {
            None => Ok(addresses),
            Some(address) => {
                let host = uri.host().unwrap_or_default();
                let reason = format!("{host} is {}, which is not a public address", address.ip());
                Err(ureq::Error::Other(reason.into()))
            }
        }
    }
}

/// Whether an address is on the public internet.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = matches!(
        (a, b, c),
        (0 | 10 | 127 | 224.., ..)        // this network, private, loopback, multicast and reserved
            | (100, 64..=127, _)          // shared by carriers
            | (169, 254, _)               // link-local, where clouds keep their secrets
            | (172, 16..=31, _)           // private
            | (192, 0, 0 | 2)             // assignments, documentation
            | (192, 88, 99)               // 6to4 relays
            | (192, 168, _)               // private
            | (198, 18 | 19, _)           // benchmarks
            | (198, 51, 100)              // documentation
            | (203, 0, 113) // documentation
    );
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(mapped) = address.to_ipv4_mapped() {
        return is_public_v4(mapped);
    }
    let [a, b, ..] = address.segments();
    // Global unicast is 2000::/3; inside it lie Teredo and its kin (2001::/23), documentation and 6to4, whose
    // addresses stand for others.
    (a & 0xE000) == 0x2000 && !(a == 0x2001 && (b < 0x200 || b == 0xDB8)) && a != 0x2002 && a != 0x3FFF
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::TcpListener,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    /// A server that answers every request alike, and the number of those it had.
    fn server(answer: Vec<u8>) -> (String, Arc<AtomicUsize>) {
        server_of(vec![answer])
    }

    /// A server that gives one answer after the other, the last one for ever; an empty answer is a lost
    /// connection.
    fn server_of(answers: Vec<Vec<u8>>) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/a.png", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let answer = &answers[counter.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1)];
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer);
            }
        });
        (address, requests)
    }

    fn ok(body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    fn redirect(to: &str) -> Vec<u8> {
        format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .into_bytes()
    }

    /// As used, but the loopback address of the tests' servers is allowed.
    fn to_test_server(limit: u64) -> RemoteImages {
        RemoteImages::new(|address| address == Ipv4Addr::LOCALHOST, Duration::from_secs(2), limit)
    }

    #[test]
    fn private_addresses_are_refused_before_they_are_reached() {
        let (address, requests) = server(ok(b"picture"));
        let named = address.replace("127.0.0.1", "localhost");
        for url in [&address, &named] {
            let error = RemoteImages::default().fetch(url).unwrap_err().to_string();
            assert!(error.contains("not a public address"), "{error}");
        }
        assert_eq!(requests.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn redirects_are_checked_like_first_addresses() {
        let (address, _) = server(redirect("http://127.0.0.2:9/metadata"));
        let error = to_test_server(100).fetch(&address).unwrap_err().to_string();
        assert!(error.contains("127.0.0.2, which is not a public address"), "{error}");
    }

    #[test]
    fn fetches_up_to_the_limit() {
        let (address, _) = server(ok(b"picture"));
        assert_eq!(to_test_server(100).fetch(&address).unwrap(), b"picture");
        let (large, _) = server(ok(&[0; 101]));
        assert!(to_test_server(100).fetch(&large).is_err());
    }

    #[test]
    fn says_what_the_server_answered_and_does_not_wait_for_ever() {
        let (gone, _) = server(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec());
        assert!(to_test_server(100).fetch(&gone).unwrap_err().to_string().contains("404"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = format!("http://{}/", listener.local_addr().unwrap());
        let quick = RemoteImages::new(|_| true, Duration::from_millis(100), 100);
        assert!(quick.fetch(&silent).unwrap_err().to_string().contains("timeout"));
        assert!(quick.fetch("ftp://example.org/a.png").is_err());
    }

    fn status(line: &str) -> Vec<u8> {
        format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
    }

    #[test]
    fn what_may_pass_is_tried_three_times_and_nothing_else_is() {
        let fleeting = [status("503 Busy"), status("500 Oops"), status("429 Slow down"), Vec::new()];
        for failure in fleeting {
            let (address, _) = server_of(vec![failure.clone(), failure.clone(), ok(b"picture")]);
            assert_eq!(to_test_server(100).fetch(&address).unwrap(), b"picture");
            let (address, requests) = server(failure);
            assert!(to_test_server(100).fetch(&address).is_err());
            assert_eq!(requests.load(Ordering::SeqCst), 3);
        }
        for lasting in [status("404 Not Found"), status("403 Forbidden"), ok(&[0; 101])] {
            let (address, requests) = server(lasting);
            assert!(to_test_server(100).fetch(&address).is_err());
            assert_eq!(requests.load(Ordering::SeqCst), 1);
        }
    }

    #[test]
    fn knows_public_addresses_from_others() {
        let public =
            ["1.1.1.1", "100.63.0.1", "172.32.0.1", "192.0.1.1", "2606:4700::1111", "::ffff:8.8.8.8"];
        let private = [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "::127.0.0.1",
        ];
        for address in public {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in private {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }
}
