//! The simulated network: a link for each ordered pair of processes, which keeps its order (B-2).
//!
//! What is sent waits in its link until the engine picks it. Faults hold links (a partition), end them (a cut, a death),
//! delay what they carry, and damage it. A connection that ended stays so: whoever sends on it, a restarted process
//! too, is not heard.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::{Engine, State};
use super::process::ProcessRuntime;
use super::random::{mix, mix_bytes};
use crate::actors::Time;
use crate::bootstrap::Hub;
use crate::bootstrap::carrier::{Carrier, Packet};
use crate::devr::numbers::NumberMap;
use crate::ids::ProcessId;

/// The processes of a world and the links between them.
#[derive(Default)]
pub(super) struct Net {
    processes: Vec<Place>,
    links: Vec<Link>,
    by_ends: NumberMap<(usize, usize), usize>,
    /// The world is over: nothing is taken any more.
    closed: bool,
    /// What faults of the network did, for reports.
    pub(super) counts: NetCounts,
}

/// What the network carried and what faults did to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetCounts {
    /// Frames that were sent on a link.
    pub sent: u64,
    /// Frames that were delivered.
    pub delivered: u64,
    /// Frames that were damaged or cut short.
    pub damaged: u64,
    /// Frames that were delayed.
    pub delayed: u64,
    /// Frames that were not taken, since their connection had ended.
    pub refused: u64,
}

impl NetCounts {
    pub(super) const fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.damaged += other.damaged;
        self.delayed += other.delayed;
        self.refused += other.refused;
    }
}

/// A process of the world, by its number among all.
struct Place {
    hub: Hub,
    runtime: Weak<ProcessRuntime>,
    /// The number of process 0 of its fleet: processes count from there for each other.
    fleet: usize,
    /// How many processes the fleet has.
    fleet_size: usize,
    dead: bool,
}

#[derive(Default)]
struct Link {
    from: usize,
    to: usize,
    queue: VecDeque<(Time, Item)>,
    /// It is in the engine's list, or a timer will put it there.
    announced: bool,
    /// Nothing is taken in any more.
    closed: bool,
    /// How many partitions hold it.
    held: u32,
}

enum Item {
    End(String),
    Packet(Packet),
}

/// One delivery.
pub(super) struct Delivery {
    hub: Hub,
    from: usize,
    to: usize,
    /// The sender's number in its fleet.
    peer: ProcessId,
    item: Item,
}

/// When a link has more to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    At(Time),
    Nothing,
}

impl Net {
    /// Adds a process of a fleet whose process 0 has this number.
    pub(super) fn add(&mut self, hub: Hub, runtime: &Arc<ProcessRuntime>, fleet: usize, fleet_size: usize) {
        let runtime = Arc::downgrade(runtime);
        self.processes.push(Place { hub, runtime, fleet, fleet_size, dead: false });
    }

    /// How many processes there are.
    pub(super) const fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Whether a process was killed.
    pub(super) fn is_dead(&self, process: usize) -> bool {
        self.processes.get(process).is_some_and(|place| place.dead)
    }

    /// The processes of the same fleet, itself left out.
    pub(super) fn peers(&self, process: usize) -> Vec<usize> {
        let Place { fleet, fleet_size, .. } = self.processes[process];
        (fleet..fleet + fleet_size).filter(|&peer| peer != process).collect()
    }

    /// Puts a packet on its link, to be delivered from `at` on. Says which link has something new, if it has.
    fn send(&mut self, from: usize, to: usize, packet: Packet, at: Time) -> Option<(usize, Time)> {
        if self.closed {
            return None;
        }
        let link = self.link(from, to);
        if self.links[link].closed {
            self.counts.refused += 1;
            return None;
        }
        self.counts.sent += 1;
        self.put(link, at, Item::Packet(packet))
    }

    /// The link ends behind what is on it.
    fn end(&mut self, from: usize, to: usize, detail: String, now: Time) -> Option<(usize, Time)> {
        let link = self.link(from, to);
        if std::mem::replace(&mut self.links[link].closed, true) {
            return None;
        }
        self.put(link, now, Item::End(detail))
    }

    fn put(&mut self, link: usize, at: Time, item: Item) -> Option<(usize, Time)> {
        let link_state = &mut self.links[link];
        // Order is kept: nothing overtakes what was delayed.
        let at = link_state.queue.back().map_or(at, |(last, _)| at.max(*last));
        link_state.queue.push_back((at, item));
        let first = !link_state.announced && link_state.held == 0;
        first.then_some((link, at))
    }

    fn link(&mut self, from: usize, to: usize) -> usize {
        let links = &mut self.links;
        *self.by_ends.entry((from, to)).or_insert_with(|| {
            links.push(Link { from, to, ..Link::default() });
            links.len() - 1
        })
    }

    /// The link is put into the engine's list. False if it is there.
    pub(super) fn announce(&mut self, link: usize) -> bool {
        !std::mem::replace(&mut self.links[link].announced, true)
    }

    /// Takes the next delivery of a link off it.
    pub(super) fn take(&mut self, link: usize) -> (Option<Delivery>, More) {
        let Link { from, to, .. } = self.links[link];
        let state = &mut self.links[link];
        state.announced = false;
        if state.held > 0 {
            return (None, More::Nothing);
        }
        let Some((_, item)) = state.queue.pop_front() else { return (None, More::Nothing) };
        let more = state.queue.front().map_or(More::Nothing, |(at, _)| More::At(*at));
        let Place { fleet, ref hub, .. } = self.processes[to];
        let peer = ProcessId::new(u32::try_from(from - fleet).unwrap_or(u32::MAX));
        self.counts.delivered += u64::from(matches!(item, Item::Packet(_)));
        (Some(Delivery { hub: hub.clone(), from, to, peer, item }), more)
    }

    /// Holds or frees every link between a process of `group` and one outside of it. Returns those with something to
    /// deliver.
    fn hold(&mut self, group: &[usize], held: bool) -> Vec<usize> {
        // Links over which nothing was sent yet, too.
        let processes = self.processes.len();
        for &process in group.iter().filter(|&&process| process < processes) {
            for peer in self.peers(process).into_iter().filter(|peer| !group.contains(peer)) {
                self.link(process, peer);
                self.link(peer, process);
            }
        }
        let mut free = Vec::new();
        for (number, link) in self.links.iter_mut().enumerate() {
            if group.contains(&link.from) != group.contains(&link.to) {
                link.held = if held { link.held + 1 } else { link.held.saturating_sub(1) };
                if link.held == 0 && !link.announced && !link.queue.is_empty() {
                    free.push(number);
                }
            }
        }
        free
    }

    fn kill(&mut self, process: usize, now: Time) -> Vec<(usize, Time)> {
        self.processes[process].dead = true;
        let mut news = Vec::new();
        for peer in self.peers(process) {
            let inbound = self.link(peer, process);
            self.links[inbound].queue.clear();
            self.links[inbound].closed = true;
            news.extend(self.end(process, peer, DEATH.to_owned(), now));
        }
        news
    }

    /// The fingerprint of all actors and of what is under way.
    pub(super) fn print(&self) -> u64 {
        let mut sum = 0_u64;
        for runtime in self.processes.iter().filter_map(|place| place.runtime.upgrade()) {
            sum = sum.wrapping_add(runtime.print(self.counts.sent));
        }
        for link in &self.links {
            let mut print = mix(link.from as u64, link.to as u64);
            print = mix(print, u64::from(link.held) << 1 | u64::from(link.closed));
            for (at, item) in &link.queue {
                let at = u64::try_from(at.since(Time::ZERO).as_nanos()).unwrap_or(u64::MAX);
                let item = match item {
                    Item::End(_) => END,
                    Item::Packet(packet) => mix_bytes(0, packet.bytes()),
                };
                print = mix(mix(print, at), item);
            }
            sum = sum.wrapping_add(print);
        }
        sum
    }

    pub(super) fn runtime(&self, process: usize) -> Option<Arc<ProcessRuntime>> {
        self.processes.get(process)?.runtime.upgrade()
    }

    /// The world is over. Lets go of the processes' hubs.
    pub(super) fn clear(&mut self) -> impl Sized + use<> {
        self.closed = true;
        (std::mem::take(&mut self.processes), std::mem::take(&mut self.links))
    }
}

const END: u64 = 0x454e_4400;
const DEATH: &str = "its process was killed by the simulation";

impl Delivery {
    /// Hands it to the receiving process.
    pub(super) fn deliver(self, engine: &Engine) {
        let Self { hub, from, to, peer, item } = self;
        match item {
            Item::Packet(packet) => {
                tracing::trace!(from, to, "net.deliver");
                if !hub.receive(peer, &packet) {
                    // The receiver closes its end, so the sender sees an end behind what was on its way to it.
                    engine.cut(to, from, "the peer closed a connection that broke the protocol");
                }
            }
            Item::End(detail) => {
                tracing::debug!(from, to, %detail, "net.end");
                hub.lost(peer, &detail);
            }
        }
    }
}

impl Engine {
    /// Ends both directions between two processes, behind what is on its way from `a` to `b`; what is on its way from
    /// `b` to `a` is lost.
    pub(super) fn cut(&self, a: usize, b: usize, detail: &str) {
        let mut state = self.state();
        let now = state.now;
        let back = state.net.link(b, a);
        state.net.links[back].closed = true;
        state.net.links[back].queue.clear();
        let news = state.net.end(a, b, detail.to_owned(), now);
        self.announce(&mut state, news);
    }

    /// The connection between two processes breaks: each hears so behind what it had been sent.
    pub(super) fn sever(&self, a: usize, b: usize) {
        let mut state = self.state();
        // A fault may be drawn for a larger world than there is.
        if a >= state.net.processes() || !state.net.peers(a).contains(&b) {
            return;
        }
        let now = state.now;
        for (from, to) in [(a, b), (b, a)] {
            let news = state.net.end(from, to, "the simulation cut the connection".to_owned(), now);
            self.announce(&mut state, news);
        }
    }

    /// A process dies: its peers hear so behind what it had sent, its actors go without a word.
    pub(super) fn kill(&self, process: usize) {
        let mut state = self.state();
        if process >= state.net.processes() || state.net.is_dead(process) {
            return;
        }
        let now = state.now;
        let news = state.net.kill(process, now);
        self.announce(&mut state, news);
        let runtime = state.net.runtime(process);
        drop(state);
        tracing::info!(process, "sim.kill");
        if let Some(runtime) = runtime {
            runtime.shut_down();
        }
    }

    /// Holds or frees the links between the processes of a group and the others.
    pub(super) fn hold(&self, group: &[usize], held: bool) {
        let mut state = self.state();
        let now = state.now;
        let free = state.net.hold(group, held);
        self.announce(&mut state, free.into_iter().map(|link| (link, now)));
    }

    fn announce(&self, state: &mut State, news: impl IntoIterator<Item = (usize, Time)>) {
        for (link, at) in news {
            self.link_due(state, link, at);
        }
    }
}

/// How a fleet's hubs reach the network. It does not keep the engine alive, which holds the hubs.
pub(super) struct NetCarrier {
    pub(super) engine: Weak<Engine>,
    /// The number of the fleet's process 0.
    pub(super) fleet: usize,
}

impl Carrier for NetCarrier {
    fn carry(&self, from: ProcessId, to: ProcessId, mut packet: Packet) {
        let Some(engine) = self.engine.upgrade() else { return };
        let (from, to) = (self.fleet + from.index(), self.fleet + to.index());
        let mut state = engine.state();
        let state = &mut *state;
        let at = state.now + state.plan.delay(&mut state.chooser, from);
        if at > state.now {
            state.net.counts.delayed += 1;
        }
        if state.plan.damage(&mut state.chooser, packet.bytes_mut()) {
            state.net.counts.damaged += 1;
        }
        let news = state.net.send(from, to, packet, at);
        engine.announce(state, news);
    }

    fn now(&self) -> Duration {
        self.engine.upgrade().map_or(Duration::ZERO, |engine| engine.now().since(Time::ZERO))
    }
}

impl fmt::Debug for NetCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetCarrier").field("fleet", &self.fleet).finish_non_exhaustive()
    }
}
