//! What `/metrics` shows: OpenMetrics text made from the counters when somebody asks.
//!
//! Names start with `nodeward_`, carry their unit, and have labels from bounded sets alone: service ports taken, rank
//! words, drop reasons, worker numbers.

use super::status::{ServiceState, Status};
use super::{DropReason, Registry, ServicePortSnapshot, WorkerCounters};
use crate::model::{IpFamily, ServicePortKey};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode as encode_text;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Exposition;
use std::collections::BTreeMap;
use std::fmt;

/// The exposition's media type.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// From an event at the source to the table in every worker, in seconds: around the batch window and the limits of 10 ms
/// (p99) and 100 ms.
const APPLY_BUCKETS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// What the control thread measures about itself.
#[derive(Clone, Debug)]
pub struct ControlMetrics {
    /// Seconds from a change's arrival to its table being published.
    pub apply_duration: Histogram,
    /// Tables published.
    pub tables_published: Counter,
    /// Objects or files that the source refused.
    pub source_errors: Counter,
    /// Redirection changes that failed.
    pub redirect_errors: Counter,
    /// Ip rules or routes that somebody removed and we put back.
    pub routes_restored: Counter,
    /// Packets of taken services that kube-proxy got, by [`BYPASS_REASONS`].
    bypassed: [Counter; BYPASS_REASONS.len()],
}

/// Why kube-proxy got packets of taken services.
pub const BYPASS_REASONS: [&str; 3] = ["lease_expired", "no_socket", "host_lease_expired"];

impl ControlMetrics {
    /// The counter of a reason; an unknown one counts as the first.
    pub fn bypassed(&self, reason: &str) -> &Counter {
        let index = BYPASS_REASONS.iter().position(|r| *r == reason).unwrap_or(0);
        &self.bypassed[index]
    }
}

impl Default for ControlMetrics {
    fn default() -> Self {
        Self {
            apply_duration: Histogram::new(APPLY_BUCKETS),
            tables_published: Counter::default(),
            source_errors: Counter::default(),
            redirect_errors: Counter::default(),
            routes_restored: Counter::default(),
            bypassed: Default::default(),
        }
    }
}

/// Writes the exposition.
///
/// # Errors
/// None in practice: writing to a string fails only where a label cannot be printed.
pub fn encode(
    registry: &Registry,
    control: &ControlMetrics,
    status: &Status,
    ready: bool,
) -> Result<String, fmt::Error> {
    let mut exposition = Exposition::with_prefix("nodeward");
    exposition.register_collector(Box::new(Scrape {
        ports: registry.snapshot(),
        workers: registry.workers().iter().map(|w| WORKER.map(|m| (m.get)(w))).collect(),
        control: control.clone(),
        status: status.clone(),
        ready,
    }));
    let mut text = String::new();
    encode_text(&mut text, &exposition)?;
    Ok(text)
}

/// Everything one scrape shows.
#[derive(Debug)]
struct Scrape {
    ports: BTreeMap<(ServicePortKey, IpFamily), ServicePortSnapshot>,
    workers: Vec<[u64; WORKER.len()]>,
    control: ControlMetrics,
    status: Status,
    ready: bool,
}

#[derive(Clone, Copy)]
struct Metric<T> {
    name: &'static str,
    help: &'static str,
    gauge: bool,
    get: fn(&T) -> u64,
}

const fn counter<T>(name: &'static str, help: &'static str, get: fn(&T) -> u64) -> Metric<T> {
    Metric {
        name,
        help,
        gauge: false,
        get,
    }
}

const fn gauge<T>(name: &'static str, help: &'static str, get: fn(&T) -> u64) -> Metric<T> {
    Metric {
        name,
        help,
        gauge: true,
        get,
    }
}

/// Counters of a service port without further labels.
const PORT: [Metric<ServicePortSnapshot>; 11] = [
    counter("received_datagrams", "Datagrams received from clients", |s| s.received),
    counter("received_bytes", "Bytes received from clients", |s| s.received_bytes),
    counter("forwarded_bytes", "Bytes sent to endpoints the first time", |s| {
        s.forwarded_bytes
    }),
    counter("answered_datagrams", "Answers sent back to clients", |s| s.answered),
    counter("answered_bytes", "Bytes sent back to clients", |s| s.answered_bytes),
    counter(
        "synthesized_answers",
        "Answers made here because no endpoint was left to ask",
        |s| s.synthesized,
    ),
    counter(
        "retries",
        "Queries asked again elsewhere because the first endpoint stayed silent",
        |s| s.retries,
    ),
    counter(
        "moved_queries",
        "Queries moved because their endpoint refused or went away",
        |s| s.moved,
    ),
    counter(
        "fallbacks",
        "New flows sent to a worse rank than the best one listed, because of health",
        |s| s.fallbacks,
    ),
    counter(
        "panic_picks",
        "Picks while no endpoint was usable, so that all were",
        |s| s.panics,
    ),
    counter(
        "unanswered_queries",
        "Queries that got no answer in their life time",
        |s| s.unanswered,
    ),
];

/// What each worker counts about itself.
const WORKER: [Metric<WorkerCounters>; 9] = [
    counter("worker_turns", "Turns of the worker's loop", |w| w.turns.get()),
    gauge(
        "worker_table_generation",
        "Generation of the table the worker uses",
        |w| w.table_generation.get(),
    ),
    gauge("worker_outstanding_queries", "Queries waiting for an answer", |w| {
        w.outstanding.get()
    }),
    gauge(
        "worker_stored_bytes",
        "Bytes of queries kept for being asked again",
        |w| w.stored_bytes.get(),
    ),
    counter("worker_rearmed_receives", "Multishot receives armed again", |w| {
        w.rearmed.get()
    }),
    counter("worker_buffers_exhausted", "Times the buffer ring ran empty", |w| {
        w.buffers_exhausted.get()
    }),
    counter(
        "worker_completion_overflows",
        "Times the completion queue overflowed",
        |w| w.cq_overflow.get(),
    ),
    counter(
        "worker_socket_errors",
        "Socket errors read from error queues (ICMP)",
        |w| w.socket_errors.get(),
    ),
    counter("worker_stray_answers", "Answers that belong to no service port", |w| {
        w.stray_answers.get()
    }),
];

type Labels = Vec<(&'static str, String)>;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let ports: Vec<_> = self
            .ports
            .iter()
            .map(|((key, family), s)| (port_labels(key, *family), s))
            .collect();
        for m in &PORT {
            let rows = ports.iter().map(|(labels, s)| (labels.clone(), (m.get)(s)));
            write_rows(&mut encoder, m.name, m.help, m.gauge, rows)?;
        }
        let by_rank = ports.iter().flat_map(|(labels, s)| {
            let ranks = self.status.ranks.iter().zip(s.forwarded);
            ranks.map(|(rank, n)| (with(labels, "rank", rank), n))
        });
        let help = "Datagrams sent to endpoints the first time, by distance";
        write_rows(&mut encoder, "forwarded_datagrams", help, false, by_rank)?;
        for (name, help, answers) in [
            (
                "dropped_datagrams",
                "Datagrams of clients not forwarded, by reason",
                false,
            ),
            ("dropped_answers", "Answers of endpoints not passed on, by reason", true),
        ] {
            let by_reason = ports.iter().flat_map(|(labels, s)| {
                let reasons = DropReason::ALL.iter().zip(s.dropped);
                reasons
                    .filter(|(reason, _)| reason.is_answer() == answers)
                    .map(|(reason, n)| (with(labels, "reason", reason.as_str()), n))
            });
            write_rows(&mut encoder, name, help, false, by_reason)?;
        }
        for (i, m) in WORKER.iter().enumerate() {
            let rows = self.workers.iter().enumerate();
            let rows = rows.map(|(worker, values)| (vec![("worker", worker.to_string())], values[i]));
            write_rows(&mut encoder, m.name, m.help, m.gauge, rows)?;
        }
        self.encode_control(&mut encoder)?;
        self.encode_status(&mut encoder)
    }
}

impl Scrape {
    fn encode_control(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let c = &self.control;
        let metrics: [(&str, &str, &dyn EncodeMetric); 5] = [
            (
                "apply_duration_seconds",
                "Seconds from a change's arrival to its table being published",
                &c.apply_duration,
            ),
            ("tables_published", "Tables published", &c.tables_published),
            (
                "source_errors",
                "Objects or files that the source refused",
                &c.source_errors,
            ),
            ("redirect_errors", "Redirection changes that failed", &c.redirect_errors),
            (
                "routes_restored",
                "Ip rules or routes put back after somebody removed them",
                &c.routes_restored,
            ),
        ];
        let reasons = BYPASS_REASONS.iter().zip(&c.bypassed);
        let rows = reasons.map(|(reason, n)| (vec![("reason", (*reason).to_owned())], n.get()));
        let help = "Packets of taken services that kube-proxy got, by reason";
        write_rows(encoder, "bypassed_packets", help, false, rows)?;
        for (name, help, metric) in metrics {
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        Ok(())
    }

    fn encode_status(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let s = &self.status;
        let none = Vec::new;
        let one = |encoder: &mut DescriptorEncoder<'_>, name, help, n: u64| {
            write_rows(encoder, name, help, true, std::iter::once((none(), n)))
        };
        one(
            encoder,
            "table_generation",
            "Generation of the table last published",
            s.table_generation,
        )?;
        one(encoder, "workers", "Number of workers", s.workers as u64)?;
        one(
            encoder,
            "ready",
            "1 where the agent does its job",
            u64::from(self.ready),
        )?;
        one(
            encoder,
            "source_synced",
            "1 once the first complete state arrived",
            u64::from(s.source.synced),
        )?;
        one(
            encoder,
            "source_failures",
            "What is wrong at the source now",
            s.source.errors.len() as u64,
        )?;
        one(
            encoder,
            "redirect_installed",
            "1 while the nft table and ip rules are in place",
            u64::from(s.redirect.installed),
        )?;
        let help = "1 where new flows of the service port come to Nodeward, 0 where kube-proxy serves them";
        let rows = s.services.iter().map(|p| {
            let (namespace, service) = p.service.split_once('/').unwrap_or(("", &p.service));
            let labels = labels(namespace, service, &p.port, &p.protocol, &p.family);
            let intercepting = p.state == ServiceState::Intercepting;
            (labels, u64::from(intercepting))
        });
        write_rows(encoder, "intercepting", help, true, rows)?;
        let help = "Words of a Service that were ignored or are deprecated (nodeward explain tells which)";
        let rows = s.services.iter().map(|p| {
            let (namespace, service) = p.service.split_once('/').unwrap_or(("", &p.service));
            (
                labels(namespace, service, &p.port, &p.protocol, &p.family),
                p.notices as u64,
            )
        });
        write_rows(encoder, "service_notices", help, true, rows)?;
        let engine: Labels = vec![("engine", s.engine.name.clone()), ("why", s.engine.why.clone())];
        write_info(encoder, "engine", "The engine in use, and why", &engine)?;
        let build: Labels = vec![("version", s.version.clone())];
        write_info(encoder, "build", "The version", &build)
    }
}

fn labels(namespace: &str, service: &str, port: &str, protocol: &str, family: &str) -> Labels {
    vec![
        ("namespace", namespace.to_owned()),
        ("service", service.to_owned()),
        ("port", port.to_owned()),
        ("protocol", protocol.to_owned()),
        ("family", family.to_owned()),
    ]
}

fn port_labels(key: &ServicePortKey, family: IpFamily) -> Labels {
    let port = if key.port_name.is_empty() {
        key.port.to_string()
    } else {
        key.port_name.to_string()
    };
    let (namespace, name) = (&key.service.namespace, &key.service.name);
    labels(namespace, name, &port, key.protocol.as_str(), family.as_str())
}

fn with(labels: &Labels, key: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((key, value.to_owned()));
    labels
}

fn write_rows(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    gauge: bool,
    rows: impl Iterator<Item = (Labels, u64)>,
) -> fmt::Result {
    let kind = if gauge { MetricType::Gauge } else { MetricType::Counter };
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, n) in rows {
        let mut row = metric.encode_family(&labels)?;
        if gauge {
            row.encode_gauge(&n)?;
        } else {
            row.encode_counter::<NoLabelSet, u64, f64>(&n, None)?;
        }
    }
    Ok(())
}

fn write_info(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    labels: &impl EncodeLabelSet,
) -> fmt::Result {
    encoder
        .encode_descriptor(name, help, None, MetricType::Info)?
        .encode_info(labels)
}
