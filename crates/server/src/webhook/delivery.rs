//! Posts events to their endpoints, one at a time.
//!
//! Takes the events that wait and the endpoints as they are now. An answer of 2xx ends an event. Anything else, a
//! redirect too, makes its endpoint wait longer from time to time, and the endpoint's other events are tried before
//! it again. Events older than a day are given up when a try fails.

use super::{
    Event,
    endpoint::{Endpoint, Endpoints},
    now,
    queue::{Entry, Queue},
    signature,
};
use crate::config::ServeConfig;
use garden_data::{CheckedResolver, is_public};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};
use ureq::{Agent, unversioned::transport::DefaultConnector};

const TIMEOUT: Duration = Duration::from_secs(10);
/// After an endpoint's first failure; each further one doubles it.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);

/// Which addresses events may be posted to.
///
/// Whoever can add an endpoint makes the server send requests. On a server for the users of one machine, they
/// reach its network anyway: private addresses are allowed. On any other server they may be people who should
/// not reach what stands behind it: only public addresses are. Link-local addresses, where clouds keep the
/// credentials of a machine, are never allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Network,
    Public,
}

impl Reach {
    pub(super) fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Network => in_network(address),
            Self::Public => is_public(address),
        }
    }

    pub(super) fn why_not(self) -> &'static str {
        match self {
            Self::Network => "this address is not one that events are sent to",
            Self::Public => "this server sends events to public addresses only",
        }
    }
}

/// The reach at this moment: the first key that is added narrows it.
#[derive(Clone)]
pub(crate) struct ReachNow(Arc<dyn Fn() -> Reach + Send + Sync>);

impl ReachNow {
    /// The reach of a server with these settings, on which `keys_needed` may become true.
    pub(crate) fn of(config: &ServeConfig, keys_needed: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let opened = config.webhooks_to_private_addresses;
        let local = config.is_local();
        Self(Arc::new(move || match opened || (local && !keys_needed()) {
            true => Reach::Network,
            false => Reach::Public,
        }))
    }

    pub(super) fn get(&self) -> Reach {
        (self.0)()
    }
}

impl From<Reach> for ReachNow {
    fn from(reach: Reach) -> Self {
        Self(Arc::new(move || reach))
    }
}

impl fmt::Debug for ReachNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// Whether an address is a machine's, here or elsewhere.
fn in_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_link_local() || v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => in_network(v4.into()),
            // fd00:ec2::/32 is where one cloud answers for 169.254.169.254.
            None => {
                let metadata = v6.segments()[..2] == [0xFD00, 0xEC2];
                !(metadata || v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast())
            }
        },
    }
}

/// Posts one event.
#[derive(Debug)]
pub(super) struct Postman {
    reach: ReachNow,
    network: Agent,
    public: Agent,
}

impl Postman {
    pub(super) fn new(reach: ReachNow) -> Self {
        Self { reach, network: agent(in_network), public: agent(is_public) }
    }

    /// Posts an event, signed now, and gives the status of the answer.
    pub(super) fn post(&self, endpoint: &Endpoint, event: &Event) -> Result<u16, ureq::Error> {
        let moment = now();
        let signature = signature::sign(endpoint.keys(moment), &event.id, moment, &event.body);
        let agent = match self.reach.get() {
            Reach::Network => &self.network,
            Reach::Public => &self.public,
        };
        let request = agent.post(&endpoint.url).header("content-type", "application/json");
        let request = request.header("webhook-id", &event.id).header("webhook-timestamp", moment.to_string());
        let response = request.header("webhook-signature", signature).send(&event.body)?;
        Ok(response.status().as_u16())
    }
}

/// A client that reaches these addresses only.
fn agent(allowed: fn(IpAddr) -> bool) -> Agent {
    // No proxy: it would resolve names where they are not checked. No redirect: it would go where nobody
    // asked.
    let config = Agent::config_builder()
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .timeout_global(Some(TIMEOUT))
        .max_idle_connections(0)
        .user_agent(concat!("model-garden/", env!("CARGO_PKG_VERSION")))
        .build();
    Agent::with_parts(config, DefaultConnector::default(), CheckedResolver::new(allowed))
}

/// Why an endpoint was not reached, in words that tell nothing about the network behind the server: which
/// names it knows, and which addresses they have there.
pub(super) fn why_unreachable(error: &ureq::Error) -> &'static str {
    use std::io::ErrorKind::{ConnectionRefused, ConnectionReset};
    match error {
        ureq::Error::Timeout(_) => "it did not answer in time",
        ureq::Error::HostNotFound | ureq::Error::Other(_) => {
            "its name does not lead to an address that events are sent to"
        }
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => "its certificate was not accepted",
        ureq::Error::Io(error) if error.kind() == ConnectionRefused => "the connection was refused",
        ureq::Error::Io(error) if error.kind() == ConnectionReset => "it broke the connection off",
        _ => "the connection failed",
    }
}

/// The events of one endpoint.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Entry>,
    failures: u32,
    /// When the endpoint is tried again after a failure.
    rests_until: Option<Instant>,
}

/// The delivery thread.
#[derive(Debug)]
pub(super) struct Round {
    endpoints: Arc<Endpoints>,
    queue: Arc<Queue>,
    postman: Arc<Postman>,
    lines: HashMap<String, Line>,
    first_pause: Duration,
}

impl Round {
    pub(super) fn new(
        endpoints: Arc<Endpoints>,
        queue: Arc<Queue>,
        postman: Arc<Postman>,
        first_pause: Duration,
        waiting: Vec<Entry>,
    ) -> Self {
        let mut round = Self { endpoints, queue, postman, lines: HashMap::new(), first_pause };
        waiting.into_iter().for_each(|entry| round.take(entry));
        round
    }

    /// Delivers until nobody can send events any more. What waits then waits for the next start.
    pub(super) fn run(mut self, woken: &Receiver<Entry>) {
        loop {
            let pause = self.deliver();
            match woken.recv_timeout(pause) {
                Ok(entry) => {
                    self.take(entry);
                    while let Ok(entry) = woken.try_recv() {
                        self.take(entry);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, entry: Entry) {
        self.lines.entry(entry.endpoint.clone()).or_default().waiting.push_back(entry);
    }

    /// Tries one event of every endpoint that does not rest, and says how long nothing is due after that.
    fn deliver(&mut self) -> Duration {
        for id in self.lines.keys().cloned().collect::<Vec<_>>() {
            let endpoint = self.endpoints.get(&id);
            let Some(line) = self.lines.get_mut(&id) else { continue };
            let Some(endpoint) = endpoint else {
                line.waiting.drain(..).for_each(|entry| self.queue.remove(&entry));
                continue;
            };
            if line.rests_until.is_some_and(|until| Instant::now() < until) {
                continue;
            }
            let Some(entry) = line.waiting.pop_front() else { continue };
            if matches!(self.postman.post(&endpoint, &entry.event), Ok(200..=299)) {
                self.queue.remove(&entry);
                (line.failures, line.rests_until) = (0, None);
            } else {
                line.waiting.push_back(entry);
                line.rest(self.first_pause);
                line.give_up(&self.queue);
            }
        }
        self.lines.retain(|_, line| !line.waiting.is_empty());
        self.lines.values().map(Line::due_in).min().unwrap_or(LONGEST_PAUSE)
    }
}

impl Line {
    fn due_in(&self) -> Duration {
        self.rests_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    fn rest(&mut self, first_pause: Duration) {
        self.rests_until = Some(Instant::now() + pause_after(self.failures, first_pause));
        self.failures += 1;
    }

    fn give_up(&mut self, queue: &Queue) {
        let now = Instant::now();
        self.waiting.retain(|entry| {
            let keep = entry.given_up > now;
            if !keep {
                queue.remove(entry);
            }
            keep
        });
    }
}

fn pause_after(failures: u32, first: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_an_hour() {
        let pauses: Vec<u64> = (0..40).map(|failures| pause_after(failures, FIRST_PAUSE).as_secs()).collect();
        assert_eq!(pauses[..4], [5, 10, 20, 40]);
        assert_eq!(pauses[39], 3600);
    }

    #[test]
    fn private_addresses_are_for_servers_of_one_machine_or_where_they_are_opened() {
        let config = ServeConfig::new("data".into(), "program".into());
        let proxied = ServeConfig { allowed_hosts: vec!["garden.example".into()], ..config.clone() };
        let everywhere = ServeConfig { host: "0.0.0.0".parse().unwrap(), ..config.clone() };
        let opened = ServeConfig { webhooks_to_private_addresses: true, ..everywhere.clone() };
        for (config, keys, expected) in [
            (&config, false, Reach::Network),
            (&config, true, Reach::Public),
            (&proxied, false, Reach::Public),
            (&everywhere, true, Reach::Public),
            (&opened, true, Reach::Network),
        ] {
            assert_eq!(ReachNow::of(config, move || keys).get(), expected, "{config:?}, keys: {keys}");
        }
    }

    #[test]
    fn a_public_reach_ends_at_public_addresses() {
        for (address, in_network, in_public) in [
            ("1.1.1.1", true, true),
            ("127.0.0.1", true, false),
            ("192.168.1.2", true, false),
            ("::1", true, false),
            ("169.254.169.254", false, false),
            ("::ffff:169.254.169.254", false, false),
            ("fe80::1", false, false),
            ("fd00:ec2::254", false, false),
            ("0.0.0.0", false, false),
        ] {
            let address = address.parse().unwrap();
            let allowed = (Reach::Network.allows(address), Reach::Public.allows(address));
            assert_eq!(allowed, (in_network, in_public), "{address}");
        }
    }
}
