//! What the rows share: Services with a `trafficDistribution`, and endpoint sets hinted as the controller hints them.

use super::support::*;
use nodeward::model::Service;
use rand::RngExt;
use rand::rngs::SmallRng;

pub const REGION_LABEL: &str = "topology.kubernetes.io/region";
pub const LADDER: &str = "a:R@n1(za) b:R@n2(za) c:R@n3(zb)";

pub fn distributed(value: &str) -> Service {
    let mut service = service();
    service.traffic_distribution = Some(value.into());
    service
}

/// An endpoint set as letters, states, nodes and zones, with the hints the EndpointSlice controller writes for a
/// `trafficDistribution`: ready endpoints get theirs, others none; without a zone there is no zone hint.
pub fn controller(distribution: &str, endpoints: &[(char, &str, &str, &str)]) -> String {
    let one = |(id, state, node, zone): &(char, &str, &str, &str)| {
        let zone_part = if zone.is_empty() {
            String::new()
        } else {
            format!("({zone})")
        };
        let mut text = format!("{id}:{state}@{node}{zone_part}");
        if *state == "R" {
            if distribution == "PreferSameNode" {
                text.push_str(&format!("/hn={node}"));
            }
            if !zone.is_empty() {
                text.push_str(&format!("/hz={zone}"));
            }
        }
        text
    };
    endpoints.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Nodes with fixed zones, as in a cluster: node n1 and n2 in za, n3 in zb, n4 in zc, n5 without a zone.
pub const PLACES: [(&str, &str); 5] = [("n1", "za"), ("n2", "za"), ("n3", "zb"), ("n4", "zc"), ("n5", "")];

pub fn random_set(
    rng: &mut SmallRng,
    places: usize,
    count: std::ops::RangeInclusive<u8>,
) -> Vec<(char, &'static str, &'static str, &'static str)> {
    let n = rng.random_range(count);
    let one = |i| {
        let (node, zone) = PLACES[rng.random_range(0..places)];
        let state = ["R", "R", "R", "U", "T", "X"][rng.random_range(0..6)];
        (char::from(b'a' + i), state, node, zone)
    };
    (0..n).map(one).collect()
}

pub fn letters(set: &[(char, &str, &str, &str)], test: impl Fn(&(char, &str, &str, &str)) -> bool) -> String {
    set.iter().filter(|e| test(e)).map(|e| e.0).collect()
}
