//! How often a client may ask.
//!
//! Each client has a bucket that fills steadily and that a request takes from; an empty one means 429 with the time
//! until the next. A client is an address, or the network of an IPv6 address. The table is bounded.

use crate::api::error::ApiError;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Clients that are remembered.
const CLIENTS: usize = 4096;
/// Seconds of requests that may come at once.
const BURST: f64 = 10.0;

pub(super) struct Rate {
    per_second: f64,
    buckets: Mutex<HashMap<IpAddr, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Rate {
    /// Lets each client ask so often; 0 is any number of times.
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second: per_second.into(), buckets: Mutex::default() }
    }

    pub(super) fn check(&self, client: IpAddr) -> Result<(), ApiError> {
        self.check_at(client, Instant::now()).map_err(|wait| {
            let seconds = (wait.as_secs_f64().ceil() as u64).clamp(1, 120);
            ApiError::busy(format!("too many requests; try again in {seconds} s"), seconds)
        })
    }

    fn check_at(&self, client: IpAddr, now: Instant) -> Result<(), Duration> {
        if self.per_second == 0.0 {
            return Ok(());
        }
        let full = Bucket { level: self.per_second * BURST, at: now };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= CLIENTS {
            self.forget(&mut buckets, now);
        }
        let bucket = buckets.entry(network(client)).or_insert(full);
        *bucket = Bucket { level: self.level(bucket, now), at: now };
        if bucket.level < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.level) / self.per_second));
        }
        bucket.level -= 1.0;
        Ok(())
    }

    fn level(&self, bucket: &Bucket, now: Instant) -> f64 {
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.level + since * self.per_second).min(self.per_second * BURST)
    }

    /// Forgets clients that have all of their requests left, or else the half that has asked the longest ago.
    fn forget(&self, buckets: &mut HashMap<IpAddr, Bucket>, now: Instant) {
        buckets.retain(|_, bucket| self.level(bucket, now) < self.per_second * BURST);
        if buckets.len() >= CLIENTS {
            let mut times: Vec<Instant> = buckets.values().map(|bucket| bucket.at).collect();
            let (_, median, _) = times.select_nth_unstable(CLIENTS / 2);
            let median = *median;
            buckets.retain(|_, bucket| bucket.at > median);
        }
    }
}

/// The network that one client has to itself.
pub(crate) fn network(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V6(ip) if ip.is_loopback() => client,
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => IpAddr::V4(ip),
            None => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX))),
        },
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_asks_too_often_waits_and_others_do_not() {
        let (rate, start) = (Rate::new(2), Instant::now());
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        for _ in 0..20 {
            assert_eq!(rate.check_at(one, start), Ok(()));
        }
        assert_eq!(rate.check_at(one, start), Err(Duration::from_millis(500)));
        assert_eq!(rate.check_at(other, start), Ok(()));
        let later = start + Duration::from_millis(500);
        assert_eq!(rate.check_at(one, later), Ok(()));
        assert!(rate.check_at(one, later).is_err());
        assert!((0..1000).all(|_| Rate::new(0).check_at(one, start).is_ok()));
    }

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let same = ["2001:db8::1", "2001:db8::ffff:1"].map(|ip| network(ip.parse().unwrap()));
        assert_eq!(same[0], same[1]);
        assert!(network("::1".parse().unwrap()).is_loopback());
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), network("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn the_table_stays_small() {
        let (rate, start) = (Rate::new(1), Instant::now());
        for number in 0..20_000_u32 {
            let _ = rate.check_at(IpAddr::V4(number.into()), start + Duration::from_micros(number.into()));
        }
        assert!(rate.buckets.lock().unwrap().len() <= CLIENTS);
    }
}
