//! Host and Origin: whether a browser was led here by somebody else's page.
//!
//! A page of another site can make a browser send requests here, by a form, or by a name of its own that leads to this
//! address. The Host of every request must therefore be one that the server knows, and what a browser says about where
//! a request comes from must be the server itself.

use crate::api::error::ApiError;
use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, Method, header, uri::Authority},
};
use std::net::{IpAddr, SocketAddr};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

pub(super) struct Hosts {
    /// Names and addresses, in lower case, with a port or without.
    known: Vec<String>,
    /// The server listens at every address of the machine. No name leads astray that is an address.
    any_address: bool,
}

impl Hosts {
    pub(super) fn new(address: SocketAddr, allowed: &[String]) -> Self {
        let address_host = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let own = [address_host.as_str(), "localhost", "127.0.0.1", "[::1]"];
        let all = own.into_iter().chain(allowed.iter().map(String::as_str));
        let known = all.map(|host| host.trim().trim_end_matches('.').to_ascii_lowercase()).collect();
        Self { known, any_address: address.ip().is_unspecified() }
    }

    pub(super) fn check(&self, request: &Request) -> Result<(), ApiError> {
        let host = self.host(request)?;
        let headers = request.headers();
        let safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        let foreign =
            |what: &str| Err(ApiError::forbidden(format!("the request comes from another site ({what})")));
        match text(headers, &FETCH_SITE) {
            None | Some("same-origin" | "none") => {}
            // Somebody follows a link to a page. The API is for programs: an answer may start a process.
            Some(_) if safe && is_link(headers) && !request.uri().path().starts_with("/v1/") => {}
            Some(site) => return foreign(&format!("Sec-Fetch-Site: {site}")),
        }
        match text(headers, &header::ORIGIN) {
            Some(origin) if !safe && !self.is_own(origin, &host) => foreign(&format!("Origin: {origin}")),
            _ if !safe && headers.get(header::ORIGIN).is_some_and(|origin| origin.to_str().is_err()) => {
                foreign("Origin")
            }
            _ => Ok(()),
        }
    }

    /// The host that was asked for, if it is one of ours.
    fn host(&self, request: &Request) -> Result<Authority, ApiError> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let header = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()),
            _ => None,
        };
        let none = || ApiError::bad_request("the request needs one Host header");
        let header = header.filter(|host| !host.as_str().contains('@')).ok_or_else(none)?;
        for host in [Some(&header), request.uri().authority()].into_iter().flatten() {
            if !self.knows(host) {
                let message = format!(
                    "this server does not go by the name '{}'; whoever runs it can allow the name",
                    host.host()
                );
                return Err(ApiError::forbidden(message).code("host_not_allowed"));
            }
        }
        Ok(header)
    }

    fn knows(&self, host: &Authority) -> bool {
        let name = host.host().trim_end_matches('.').to_ascii_lowercase();
        let with_port = host.port().map(|port| format!("{name}:{port}"));
        (self.any_address && address(&name).is_some())
            || self.known.iter().any(|known| *known == name || Some(known) == with_port.as_ref())
    }

    /// Whether an Origin is the server that was asked. Behind a proxy the Host may be another name of ours.
    fn is_own(&self, origin: &str, host: &Authority) -> bool {
        let Some((scheme, rest)) = origin.split_once("://") else { return false };
        let Ok(authority) = rest.parse::<Authority>() else { return false };
        let same = authority.as_str().eq_ignore_ascii_case(host.as_str());
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return false,
        };
        let port = |authority: &Authority| authority.port_u16().unwrap_or(default_port);
        let same_name = authority.host().eq_ignore_ascii_case(host.host());
        same || (same_name && port(&authority) == port(host))
            || (!same_name && self.is_allowed_name(&authority))
    }

    /// A name that was allowed by whoever runs the server; an address that everybody has is none.
    fn is_allowed_name(&self, authority: &Authority) -> bool {
        let name = authority.host().to_ascii_lowercase();
        let everybody = matches!(name.as_str(), "localhost" | "127.0.0.1" | "[::1]");
        !everybody && address(&name).is_none() && self.knows(authority)
    }
}

/// Whether a browser opens what was asked for as a page, and not in a frame or as a part of one.
fn is_link(headers: &HeaderMap) -> bool {
    text(headers, &FETCH_MODE) == Some("navigate") && text(headers, &FETCH_DEST) == Some("document")
}

/// An address, in brackets or without.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn status(hosts: &Hosts, method: &str, headers: &[(&str, &str)]) -> u16 {
        status_at(hosts, method, "/v1/files", headers)
    }

    fn status_at(hosts: &Hosts, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        hosts.check(&request).map_or_else(|error| error.status.as_u16(), |()| 200)
    }

    fn local() -> Hosts {
        Hosts::new(
            "127.0.0.1:8000".parse().unwrap(),
            &["Garden.example.org".to_owned(), "gpu:9000".to_owned()],
        )
    }

    #[test]
    fn only_known_names_are_answered() {
        for (host, expected) in [
            ("127.0.0.1:8000", 200),
            ("localhost:9999", 200),
            ("LOCALHOST", 200),
            ("[::1]:8000", 200),
            ("garden.example.org", 200),
            ("garden.example.org.:443", 200),
            ("gpu:9000", 200),
            ("gpu:9001", 403),
            ("evil.example", 403),
            ("localhost.evil.example", 403),
            ("127.0.0.1.nip.io:8000", 403),
            ("10.0.0.5:8000", 403),
            ("evil@localhost", 400),
            ("", 400),
        ] {
            assert_eq!(status(&local(), "GET", &[("host", host)]), expected, "{host:?}");
        }
        assert_eq!(status(&local(), "GET", &[]), 400);
        assert_eq!(status(&local(), "GET", &[("host", "localhost"), ("host", "evil")]), 400);
        let everywhere = Hosts::new("0.0.0.0:8000".parse().unwrap(), &[]);
        assert_eq!(status(&everywhere, "GET", &[("host", "10.0.0.5:8000")]), 200);
        assert_eq!(status(&everywhere, "GET", &[("host", "evil.example")]), 403);
    }

    #[test]
    fn what_other_sites_send_is_refused() {
        let post = |headers: &[(&str, &str)]| {
            let host = [("host", "localhost:8000")];
            status(&local(), "POST", &[&host, headers].concat())
        };
        assert_eq!(post(&[]), 200, "a program sends no Origin");
        assert_eq!(post(&[("origin", "http://localhost:8000"), ("sec-fetch-site", "same-origin")]), 200);
        assert_eq!(post(&[("origin", "https://garden.example.org")]), 200, "behind a proxy");
        for origin in
            ["http://evil.example", "http://localhost:3000", "http://localhost", "null", "file://", ""]
        {
            assert_eq!(post(&[("origin", origin)]), 403, "{origin:?}");
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(post(&[("sec-fetch-site", site)]), 403);
        }
        let get = |path, mode, dest| {
            let from = [("host", "localhost"), ("sec-fetch-site", "cross-site")];
            let how = [("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            status_at(&local(), "GET", path, &[from, how].concat())
        };
        assert_eq!(get("/jobs", "navigate", "document"), 200, "a link");
        for (path, mode, dest) in [
            ("/jobs", "navigate", "iframe"),
            ("/jobs", "no-cors", "image"),
            ("/jobs", "cors", "empty"),
            ("/v1/garden/datasets/file-a/rows", "navigate", "document"),
        ] {
            assert_eq!(get(path, mode, dest), 403, "{path} {mode} {dest}");
        }
    }

    #[test]
    fn at_every_address_an_origin_is_still_the_host_that_was_asked() {
        let everywhere = Hosts::new("0.0.0.0:8000".parse().unwrap(), &["[2001:db8::1]:8000".to_owned()]);
        for (origin, expected) in [
            ("http://10.0.0.5:8000", 200),
            ("http://10.0.0.6:8000", 403),
            ("http://[2001:db8::2]:8000", 403),
            ("http://[::ffff:10.0.0.5]:8000", 403),
        ] {
            let headers = [("host", "10.0.0.5:8000"), ("origin", origin)];
            assert_eq!(status(&everywhere, "POST", &headers), expected, "{origin}");
        }
    }
}
