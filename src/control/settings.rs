//! From the configuration file's words to the sizes of the parts.

use crate::config::Config;
use crate::engine::io_uring::Config as EngineConfig;
use crate::redirect::RedirectConfig;
use crate::worker::WorkerConfig;

/// Descriptors beside upstream and VIP sockets: engine, wake-up, probes, logs, admin connections.
const OTHER_DESCRIPTORS: u64 = 256;

/// How each worker is made.
pub fn workers(config: &Config, cpus: &[usize]) -> Vec<WorkerConfig> {
    let count = config.workers.resolve();
    let worker = |index: usize| WorkerConfig {
        index,
        // Spread over the allowed CPUs, from the last one down: interrupts and the control thread prefer the first.
        cpu: match cpus.len() {
            0 => None,
            n => Some(cpus[(n - 1) - (index * n / count).min(n - 1)]),
        },
        engine: EngineConfig::default(),
        max_outstanding: config.udp.max_outstanding as usize,
        stored_bytes: usize::try_from(config.udp.stored_bytes).unwrap_or(usize::MAX),
        dns_timeout: config.udp.dns_timeout.as_millis() as u64,
        upstream_sockets: config.udp.upstream_sockets,
        upstream_receive_buffer: UPSTREAM_RECEIVE_BUFFER,
    };
    (0..count).map(worker).collect()
}

/// Each upstream socket carries a small share of the answers.
const UPSTREAM_RECEIVE_BUFFER: usize = 256 * 1024;

/// The redirection of this configuration.
pub fn redirect(config: &Config) -> RedirectConfig {
    RedirectConfig {
        instance: config.redirect.instance.clone(),
        mark_field: config.redirect.mark,
        pool_first: *config.redirect.pool_ports.start(),
        pool_last: *config.redirect.pool_ports.end(),
        routing_table: config.redirect.route_table,
        rule_priority: config.redirect.rule_priority,
        ..RedirectConfig::default()
    }
}

/// How many descriptors the process may need at most.
pub fn descriptors(workers: &[WorkerConfig]) -> u64 {
    let sockets: u64 = workers.iter().map(|w| w.engine.max_sockets as u64).sum();
    sockets + OTHER_DESCRIPTORS
}
