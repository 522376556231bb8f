//! What an incoming datagram is: the answer, a duplicate, late, from the wrong place, or nothing that was asked for.

use super::load::Plan;
use super::outstanding::{Entry, Outstanding, State};
use super::stats::Stats;
use super::timeline::count;
use super::{Protocol, Verdict, Who};
use std::net::SocketAddr;

/// Decides what an incoming datagram is and counts it, exactly once.
pub(super) struct Judge<'a, P> {
    pub server: SocketAddr,
    pub plan: &'a Plan,
    pub protocol: &'a P,
    pub outstanding: &'a mut Outstanding,
    pub stats: &'a mut Stats,
}

impl<P: Protocol> Judge<'_, P> {
    pub fn datagram(&mut self, socket: u32, bytes: &[u8], from: SocketAddr, now: u64) {
        if (from.ip(), from.port()) != (self.server.ip(), self.server.port()) {
            self.stats.counts.wrong_source += 1;
            return;
        }
        let found = self
            .protocol
            .key_of(bytes)
            .and_then(|key| self.outstanding.find(socket, key));
        let Some(index) = found else {
            self.stats.counts.mismatched += 1;
            self.stats.counts.unknown_id += 1;
            return;
        };
        let entry = *self.outstanding.get(index);
        match self.protocol.judge(entry.query, bytes) {
            Verdict::Wrong => self.stats.counts.mismatched += 1,
            Verdict::Right { who, rcode, truncated } => {
                if self.first_in_time(index, entry, now) {
                    self.stats.counts.truncated += u64::from(truncated);
                    self.answered(entry, rcode, who, now);
                    self.outstanding.end(index, State::Answered, now + self.plan.linger_ns);
                }
            }
            Verdict::Refused { rcode } => {
                if self.first_in_time(index, entry, now) {
                    self.stats.counts.rcode_failed += 1;
                    self.stats.rcodes[usize::from(rcode & 15)] += 1;
                    self.stats.timeline.failed(entry.intended_ns);
                    self.outstanding.end(index, State::Answered, now + self.plan.linger_ns);
                }
            }
        }
    }

    /// True for the first right answer within the timeout; counts any other as what it is.
    fn first_in_time(&mut self, index: u32, entry: Entry, now: u64) -> bool {
        let counts = &mut self.stats.counts;
        let answers = entry.answers + 1;
        self.outstanding.get_mut(index).answers = answers;
        match entry.state {
            State::Waiting if now < entry.deadline_ns => return true,
            State::Waiting => {
                // Its time was over although nobody had looked yet.
                counts.timeouts += 1;
                counts.late += 1;
                self.stats.timeline.failed(entry.intended_ns);
                self.outstanding.end(index, State::Answered, now + self.plan.linger_ns);
            }
            State::TimedOut => {
                counts.late += 1;
                self.outstanding.get_mut(index).state = State::Answered;
            }
            State::Answered if answers <= entry.sends => counts.retransmit_answers += 1,
            State::Answered => counts.duplicates += 1,
        }
        false
    }

    fn answered(&mut self, entry: Entry, rcode: Option<u8>, who: Who, now: u64) {
        let stats = &mut *self.stats;
        stats.counts.answered += 1;
        if let Some(rcode) = rcode {
            stats.rcodes[usize::from(rcode & 15)] += 1;
        }
        let latency = now.saturating_sub(entry.intended_ns);
        stats.latency.saturating_record(latency);
        let answerer = stats.answerers.number(who);
        count(&mut stats.answered_by, answerer);
        stats.timeline.answered(entry.intended_ns, latency, answerer);
    }
}
