//! Joins a service port with the endpoints of its slices.

use crate::model::{EndpointSlice, IpFamily, Service, ServicePortSpec};
use crate::topology::PortEndpoint;
use std::cmp::{Ordering, Reverse};
use std::net::SocketAddr;
use std::sync::Arc;

/// An endpoint as one slice tells it.
struct Candidate<'a> {
    address: SocketAddr,
    endpoint: &'a crate::model::Endpoint,
    trigger_time_us: i64,
}

/// The endpoints of one service port in one family: all slices of the Service merged, joined by port name and protocol,
/// each endpoint with the port number its own slice gives. One per ip:port, sorted by address, whatever the order of
/// slices and endpoints.
pub(super) fn port_endpoints(
    service: &Service,
    port: &ServicePortSpec,
    family: IpFamily,
    slices: &[Arc<EndpointSlice>],
) -> Vec<PortEndpoint> {
    let mut candidates = Vec::new();
    for slice in slices
        .iter()
        .filter(|s| s.family == family && s.service == service.name)
    {
        for theirs in slice
            .ports
            .iter()
            .filter(|p| p.name == port.name && p.protocol == port.protocol)
        {
            let endpoints = slice.endpoints.iter().filter(|e| IpFamily::of(e.address) == family);
            candidates.extend(endpoints.map(|endpoint| Candidate {
                address: SocketAddr::new(endpoint.address, theirs.port),
                endpoint,
                trigger_time_us: slice.trigger_time_us,
            }));
        }
    }
    // Duplicates end up side by side: the same pod's together, its newest word first.
    candidates.sort_unstable_by_key(|c| (c.address, c.endpoint.target_uid, Reverse(c.trigger_time_us)));
    let distinct = candidates.chunk_by(|a, b| a.address == b.address);
    let mut endpoints = Vec::with_capacity(candidates.len());
    endpoints.extend(distinct.filter_map(survivor).map(|c| PortEndpoint {
        address: c.address,
        endpoint: c.endpoint.clone(),
    }));
    endpoints
}

/// Who stays where several slices hold one ip:port: of one pod (same `targetRef.uid`) the slice with the newer trigger
/// time, since a pod may be in two slices while the controller moves it; of different pods the one that is not
/// terminating, then the ready one (a running pod beats the ghost whose address it took over, k/k #135593).
fn survivor<'a, 'b>(same_address: &'b [Candidate<'a>]) -> Option<&'b Candidate<'a>> {
    let mut newest: Option<&Candidate<'_>> = None;
    let current = same_address.iter().filter(|c| match newest {
        Some(n) if c.endpoint.target_uid != 0 && n.endpoint.target_uid == c.endpoint.target_uid => {
            n.trigger_time_us == c.trigger_time_us
        }
        _ => {
            newest = Some(c);
            true
        }
    });
    current.max_by(|a, b| preference(a, b))
}

/// A total order up to equal content, so that the outcome depends on nothing but the objects.
fn preference(a: &Candidate<'_>, b: &Candidate<'_>) -> Ordering {
    let conditions = |c: &Candidate<'_>| {
        let c = c.endpoint.conditions;
        (!c.terminating, c.ready, c.serving)
    };
    let hints = |c: &Candidate<'_>| {
        c.endpoint
            .hints
            .as_deref()
            .map(|h| (h.for_nodes.clone(), h.for_zones.clone()))
    };
    conditions(a)
        .cmp(&conditions(b))
        .then_with(|| a.trigger_time_us.cmp(&b.trigger_time_us))
        .then_with(|| a.endpoint.target_uid.cmp(&b.endpoint.target_uid))
        .then_with(|| a.endpoint.node.cmp(&b.endpoint.node))
        .then_with(|| a.endpoint.zone.cmp(&b.endpoint.zone))
        .then_with(|| hints(a).cmp(&hints(b)))
}
