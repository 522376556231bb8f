//! The result of a run: one stable JSON object. README.md documents the schema; fields are added, never changed.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The schema's name and version, first field of every object.
pub const SCHEMA: &str = "nodeward-loadgen/1";

/// Result of a request/response client (`dns`, `udp`).
///
/// `queries = answered + failed` and `failed = timeouts + rcode_failed + send_failed`, always. A datagram that is no
/// right answer changes none of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// `dns` or `udp`.
    pub workload: String,
    /// The address dialled.
    pub server: String,
    /// `fresh` or `fixed`.
    pub ports: String,
    /// Time the queries were sent in, seconds: the duration asked for, or longer if the generator could not keep up.
    pub duration_s: f64,
    /// Queries begun. A retransmission is no query of its own.
    pub queries: u64,
    /// Queries that got a right answer within the timeout.
    pub answered: u64,
    /// Queries that did not.
    pub failed: u64,
    /// Failed: no right answer within the timeout, retransmissions included.
    pub timeouts: u64,
    /// Failed: answered in time with an rcode other than those accepted.
    pub rcode_failed: u64,
    /// Failed: could not be sent at all.
    pub send_failed: u64,
    /// Queries of the plan that were never begun because the generator could not keep up or was stopped.
    pub not_sent: u64,
    /// Right answers beyond one per send of the query.
    pub duplicates: u64,
    /// Datagrams from an address or port other than the one dialled.
    pub wrong_source: u64,
    /// Datagrams from the server that answer nothing outstanding: unknown id, other question, unexpected content.
    pub mismatched: u64,
    /// Of these, datagrams whose id no remembered query of that socket has.
    pub unknown_id: u64,
    /// First right answers that came after the timeout; their queries are failed.
    pub late: u64,
    /// Right answers with TC set (counted as answered; there is no TCP client yet).
    pub truncated: u64,
    /// Answers in time by rcode, NOERROR included.
    pub rcodes: BTreeMap<String, u64>,
    /// ICMP errors received. They end no query: an answer may still come.
    pub icmp_errors: u64,
    /// The same by errno name.
    pub icmp: BTreeMap<String, u64>,
    /// Sends the system refused, retransmissions included, and sockets it would not open.
    pub send_errors: u64,
    /// The same by errno name; `socket-limit` and `outstanding-limit` are this program's own bounds.
    pub send_errors_by: BTreeMap<String, u64>,
    /// Queries sent again.
    pub retransmits: u64,
    /// Further right answers to queries that were sent more than once: expected, so no duplicates.
    pub retransmit_answers: u64,
    /// Finished fresh-port queries forgotten early because too many were remembered; their duplicates go unseen.
    pub forgotten_early: u64,
    /// Queries per second asked for.
    pub rate_target: f64,
    /// Queries sent per second of `duration_s`.
    pub rate_achieved: f64,
    /// Latency of answered queries from the intended send time; null when none was answered.
    pub p50_us: Option<f64>,
    /// 90th percentile.
    pub p90_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// 99.9th percentile.
    pub p999_us: Option<f64>,
    /// Slowest answer.
    pub max_us: Option<f64>,
    /// Mean.
    pub mean_us: Option<f64>,
    /// How long after its intended time a query was really sent, 99th percentile: the generator's own error.
    pub send_lag_p99_us: f64,
    /// The same, maximum.
    pub send_lag_max_us: f64,
    /// Sockets opened; with fresh ports one per query or pair.
    pub sockets_opened: u64,
    /// CPU time of the sending threads in user mode, seconds.
    pub cpu_user_s: f64,
    /// CPU time of the sending threads in the kernel, seconds.
    pub cpu_system_s: f64,
    /// User and system CPU time per query, µs.
    pub cpu_us_per_query: f64,
    /// Answered queries by who answered (`--identify`).
    pub answered_by: BTreeMap<String, u64>,
    /// Length of a timeline interval.
    pub interval_ms: f64,
    /// What became of the queries due in each interval.
    pub timeline: Vec<Interval>,
}

/// The queries that were due in one interval of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Start of the interval, from the start of the run.
    pub at_ms: u64,
    /// Queries begun; `answered + failed`.
    pub sent: u64,
    /// Of these, answered.
    pub answered: u64,
    /// Of these, failed.
    pub failed: u64,
    /// 99th percentile of latency (two digits); null when none was answered.
    pub p99_us: Option<f64>,
    /// Who answered.
    pub answered_by: BTreeMap<String, u64>,
}

impl Report {
    /// Failed queries as a share of all.
    pub fn failed_share(&self) -> f64 {
        if self.queries == 0 {
            0.0
        } else {
            self.failed as f64 / self.queries as f64
        }
    }
}

/// What a request/response server counted (`serve dns`, `serve udp`).
///
/// `received = answered + dropped + silenced + malformed + delay_overflow + pending + send_errors`, where with
/// `--duplicate` some of the send errors may concern second copies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServeReport {
    /// [`SCHEMA`].
    pub schema: String,
    /// `serve-dns` or `serve-udp`.
    pub workload: String,
    /// Where it listened.
    pub listen: String,
    /// Its name.
    pub tag: String,
    /// Datagrams received.
    pub received: u64,
    /// Requests answered.
    pub answered: u64,
    /// Second copies sent (`--duplicate`).
    pub duplicated: u64,
    /// Requests ignored by chance (`--drop-percent`).
    pub dropped: u64,
    /// Requests ignored (`--silent`).
    pub silenced: u64,
    /// Datagrams that are no request.
    pub malformed: u64,
    /// Answers with TC set; part of `answered`.
    pub truncated: u64,
    /// Requests dropped because too many replies were waiting for their delay.
    pub delay_overflow: u64,
    /// Replies still waiting for their delay when it was stopped.
    pub pending: u64,
    /// Replies the system refused to send.
    pub send_errors: u64,
    /// Distinct client addresses and ports (counted up to 1 048 576).
    pub clients: u64,
    /// DNS requests by type asked for.
    pub by_type: BTreeMap<String, u64>,
}

impl ServeReport {
    pub(crate) fn new(workload: &str, listen: SocketAddr, tag: &str) -> Self {
        ServeReport {
            schema: SCHEMA.to_owned(),
            workload: workload.to_owned(),
            listen: listen.to_string(),
            tag: tag.to_owned(),
            received: 0,
            answered: 0,
            duplicated: 0,
            dropped: 0,
            silenced: 0,
            malformed: 0,
            truncated: 0,
            delay_overflow: 0,
            pending: 0,
            send_errors: 0,
            clients: 0,
            by_type: BTreeMap::new(),
        }
    }
}

/// Result of a one-way client (`statsd`). `datagrams = sent + failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OneWayReport {
    /// [`SCHEMA`].
    pub schema: String,
    /// `statsd`.
    pub workload: String,
    /// The address sent to.
    pub server: String,
    /// The run's name as it stands in the metrics.
    pub run: String,
    /// Sockets; each is a sender with sequence numbers of its own, from 0.
    pub senders: u64,
    /// Time the datagrams were sent in, seconds.
    pub duration_s: f64,
    /// Datagrams begun; each used up a sequence number.
    pub datagrams: u64,
    /// Datagrams the kernel took.
    pub sent: u64,
    /// Datagrams the kernel refused.
    pub failed: u64,
    /// Datagrams of the plan that were never begun because the generator could not keep up or was stopped.
    pub not_sent: u64,
    /// UDP payload bytes sent.
    pub bytes: u64,
    /// ICMP errors received.
    pub icmp_errors: u64,
    /// The same by errno name.
    pub icmp: BTreeMap<String, u64>,
    /// Sends the system refused.
    pub send_errors: u64,
    /// The same by errno name.
    pub send_errors_by: BTreeMap<String, u64>,
    /// Datagrams per second asked for.
    pub rate_target: f64,
    /// Datagrams sent per second of `duration_s`.
    pub rate_achieved: f64,
    /// How long after its intended time a datagram was really sent, 99th percentile.
    pub send_lag_p99_us: f64,
    /// The same, maximum.
    pub send_lag_max_us: f64,
    /// CPU time of the sending threads in user mode, seconds.
    pub cpu_user_s: f64,
    /// CPU time of the sending threads in the kernel, seconds.
    pub cpu_system_s: f64,
    /// User and system CPU time per datagram sent, µs.
    pub cpu_us_per_datagram: f64,
    /// Length of a timeline interval.
    pub interval_ms: f64,
    /// What became of the datagrams due in each interval.
    pub timeline: Vec<OneWayInterval>,
}

/// The datagrams that were due in one interval of a one-way run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OneWayInterval {
    /// Start of the interval, from the start of the run.
    pub at_ms: u64,
    /// Datagrams the kernel took.
    pub sent: u64,
    /// Datagrams the kernel refused.
    pub failed: u64,
}

/// What `serve statsd` counted. `received` is the sum of `malformed`, `unfollowed` and, over all senders, `received`,
/// `duplicates` and `too_old`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatsdServeReport {
    /// [`SCHEMA`].
    pub schema: String,
    /// `serve-statsd`.
    pub workload: String,
    /// Where it listened.
    pub listen: String,
    /// Its name.
    pub tag: String,
    /// Datagrams received.
    pub received: u64,
    /// Their UDP payload bytes.
    pub bytes: u64,
    /// Datagrams that are not the client's or are damaged.
    pub malformed: u64,
    /// Datagrams of senders beyond the 4 096 that are followed.
    pub unfollowed: u64,
    /// Sum over the senders.
    pub lost: u64,
    /// Sum over the senders.
    pub duplicates: u64,
    /// Sum over the senders.
    pub reordered: u64,
    /// Each sender, by run and number.
    pub senders: Vec<SenderCount>,
}

/// What came from one sender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SenderCount {
    /// Its run.
    pub run: String,
    /// Its number.
    pub sender: u64,
    /// Distinct sequence numbers received.
    pub received: u64,
    /// Lowest of them.
    pub lowest: u64,
    /// Highest of them.
    pub highest: u64,
    /// Numbers between these two that never came. What is missing before the first and after the last one received
    /// only the client's report can tell.
    pub lost: u64,
    /// Numbers that came again.
    pub duplicates: u64,
    /// Numbers that came after a higher one.
    pub reordered: u64,
    /// Numbers more than 65 535 behind the highest one; counted as neither received nor duplicate.
    pub too_old: u64,
}
