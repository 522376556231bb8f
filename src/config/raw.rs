//! The file's shape: every key, every value still text with its place. Unknown keys are errors here; what values mean is
//! decided in `validate`.

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;
use std::collections::BTreeMap;
use std::fmt;

/// A scalar with its place.
pub type Text = Spanned<String>;

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct $name { $(#[serde(default)] pub $field: Option<$type>,)* }
    };
}

section! {
    /// The whole file.
    File {
        node: Text,
        source: Source,
        select: Select,
        topology: Topology,
        services: Vec<Spanned<Rule>>,
        workers: Text,
        engine: Text,
        redirect: Redirect,
        udp: Udp,
        admin: Admin,
        batch_window: Text,
        log: Log,
    }
}
section! {
    /// Where Services and endpoints come from.
    Source { file: FileSource, }
}
section! {
    /// Manifests on disk.
    FileSource { path: Text, }
}
section! {
    /// Which Services are taken.
    Select { services: Vec<Text>, label_selector: Spanned<Selector>, service_proxy_name: Text, }
}

/// A label selector: the string form or Kubernetes' object form.
#[derive(Debug)]
pub enum Selector {
    /// `app=dns`.
    Text(String),
    /// `matchLabels` and `matchExpressions`.
    Object(SelectorObject),
}

// By hand, not `untagged`: that would replace the message on an unknown key by a general one.
impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Selector;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a label selector: `app=dns,tier in (a,b)`, or matchLabels and matchExpressions")
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<Selector, E> {
                Ok(Selector::Text(v.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Selector, A::Error> {
                SelectorObject::deserialize(MapAccessDeserializer::new(map)).map(Selector::Object)
            }
        }
        deserializer.deserialize_any(V)
    }
}

section! {
    /// The object form.
    SelectorObject { match_labels: BTreeMap<String, String>, match_expressions: Vec<Expression>, }
}
section! {
    /// One of `matchExpressions`.
    Expression { key: String, operator: String, values: Vec<String>, }
}
section! {
    /// Defaults and levels of ranking.
    Topology {
        default_policy: Text,
        default_interpretation: Text,
        default_source_address: Text,
        levels: Vec<Spanned<Level>>,
    }
}
section! {
    /// A level between node and cluster.
    Level { name: Text, label: Text, }
}
section! {
    /// One of `services`.
    Rule { name: Text, policy: Text, interpretation: Text, profile: Text, source_address: Text, }
}
section! {
    /// Redirection.
    Redirect {
        enabled: Text,
        instance: Text,
        mark: Text,
        pool_ports: Text,
        route_table: Text,
        rule_priority: Text,
    }
}
section! {
    /// Limits of the UDP data path.
    Udp {
        max_outstanding: Text,
        stored_bytes: Text,
        dns_timeout: Text,
        upstream_sockets: Text,
        receive_buffer: Text,
    }
}
section! {
    /// Admin server.
    Admin { listen: Text, run_dir: Text, }
}
section! {
    /// Logging.
    Log { level: Text, format: Text, }
}
