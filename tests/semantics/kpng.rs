//! Defects of an earlier project (kpng) that must not come back.

use super::support::*;
use nodeward::topology::strict::{HintMode, hint_mode};
use nodeward::view::service_views;
use std::sync::Arc;

#[test]
fn kpng_1_hints_for_other_zones_only_never_leave_nothing() {
    let node = context("n1", "za");
    assert_eq!(
        chosen(&view(&service(), "a:R@n2/hz=zb b:R@n3/hz=zc", &node, &strict())),
        "ab"
    );
}

#[test]
fn kpng_2_hints_count_only_where_every_ready_endpoint_has_them() {
    let node = context("n1", "za");
    // Taken one by one, b would go and c stay; together the hints are incomplete and none counts.
    assert_eq!(
        chosen(&view(&service(), "a:R@n2/hz=za b:R@n3/hz=zb c:R@n4", &node, &strict())),
        "abc"
    );
}

#[test]
fn kpng_3_node_hints_serving_and_terminating_are_known() {
    let node = context("n1", "za");
    let look = |text| chosen(&view(&service(), text, &node, &strict()));
    assert_eq!(look("a:R@n1/hn=n1/hz=za b:R@n2/hn=n2/hz=za"), "a");
    assert_eq!(look("a:T@n1 b:U@n2 c:X@n3"), "a");
    assert_eq!(look("a:T@n1 b:R@n2"), "b");
}

#[test]
fn kpng_4_a_change_of_hints_alone_is_a_change() {
    let node = context("n1", "za");
    let before = slice("svc-1", endpoints("a:R@n2/hz=zb b:R@n3/hz=zc"));
    let mut after = before.clone();
    after.endpoints = endpoints("a:R@n2/hz=zb b:R@n3/hz=za");
    assert_ne!(before, after, "the model tells them apart");
    let look = |s: &nodeward::model::EndpointSlice| {
        let view = service_views(&service(), &[Arc::new(s.clone())], &node, &strict()).remove(0);
        (chosen(&view), hint_mode(&view.endpoints, &node, true))
    };
    assert_eq!(look(&before), ("ab".to_owned(), HintMode::None));
    assert_eq!(look(&after), ("b".to_owned(), HintMode::Zone));
}
