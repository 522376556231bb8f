//! Kubernetes manifests (YAML or JSON bytes) → model objects.
//!
//! Reads `v1` Services and Nodes, `discovery.k8s.io/v1` EndpointSlices, `v1` Lists and the kinds' own Lists, nested and in
//! multi-document input. Objects of other kinds are skipped and counted. Two passes over the text: the first finds the
//! kinds, the second builds the objects with borrowed strings; no tree of values is ever held.
//!
//! Does no I/O and keeps no state but the [`Interner`].

mod convert;
mod kind;
mod raw;
mod text;

use crate::model::{Change, EndpointSlice, Interner, Node, NodeName, ObjectName, Service};
use convert::{Converter, Invalid};
use kind::Kind;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// How the bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML; input that starts with `{` is tried as JSON first.
    Yaml,
    /// JSON; several objects may follow each other.
    Json,
}

/// One object of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A Service.
    Service(Arc<Service>),
    /// An EndpointSlice.
    Slice(Arc<EndpointSlice>),
    /// A Node.
    Node(Arc<Node>),
}

impl Object {
    /// What identifies it.
    pub fn key(&self) -> ObjectKey {
        match self {
            Self::Service(service) => ObjectKey::Service(service.name.clone()),
            Self::Slice(slice) => ObjectKey::Slice(slice.name.clone()),
            Self::Node(node) => ObjectKey::Node(node.name.clone()),
        }
    }

    /// The change that adds or replaces it.
    pub fn into_change(self) -> Change {
        match self {
            Self::Service(service) => Change::Service(service),
            Self::Slice(slice) => Change::Slice(slice),
            Self::Node(node) => Change::Node(node),
        }
    }
}

/// Kind and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKey {
    /// A Service.
    Service(ObjectName),
    /// An EndpointSlice.
    Slice(ObjectName),
    /// A Node.
    Node(NodeName),
}

impl ObjectKey {
    /// The change that deletes it.
    pub fn into_deletion(self) -> Change {
        match self {
            Self::Service(name) => Change::ServiceDeleted(name),
            Self::Slice(name) => Change::SliceDeleted(name),
            Self::Node(name) => Change::NodeDeleted(name),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "Service {name}"),
            Self::Slice(name) => write!(f, "EndpointSlice {name}"),
            Self::Node(name) => write!(f, "Node {name}"),
        }
    }
}

/// What was read past on purpose, as Kubernetes does. Never an error, always countable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Objects of kinds that are not ours, by `apiVersion kind`.
    pub kinds: BTreeMap<String, u64>,
    /// Slices with `addressType: FQDN`.
    pub fqdn_slices: u64,
    /// Slices without the label `kubernetes.io/service-name`, or with an empty one.
    pub slices_without_service: u64,
    /// Endpoints with an empty `addresses`.
    pub endpoints_without_address: u64,
    /// Endpoints whose address is not of the slice's family.
    pub endpoints_of_other_family: u64,
    /// Slice ports with nil name, or with nil or zero port.
    pub slice_ports: u64,
    /// Traffic policies other than `Cluster` and `Local`; read as `Cluster`.
    pub unknown_traffic_policies: u64,
    /// Trigger times that are not RFC 3339.
    pub bad_trigger_times: u64,
}

impl Ignored {
    /// Adds the counts of another manifest.
    pub fn add(&mut self, other: &Self) {
        for (kind, count) in &other.kinds {
            *self.kinds.entry(kind.clone()).or_default() += count;
        }
        self.fqdn_slices += other.fqdn_slices;
        self.slices_without_service += other.slices_without_service;
        self.endpoints_without_address += other.endpoints_without_address;
        self.endpoints_of_other_family += other.endpoints_of_other_family;
        self.slice_ports += other.slice_ports;
        self.unknown_traffic_policies += other.unknown_traffic_policies;
        self.bad_trigger_times += other.bad_trigger_times;
    }
}

/// What a manifest holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Objects in the order of the input, each once.
    pub objects: Vec<Object>,
    /// What was skipped.
    pub ignored: Ignored,
}

/// Why a manifest was rejected, and where. Printed as
/// `document 2, line 14: Service default/web: spec.ports[0].port: invalid value: …, expected …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestError {
    /// Which document of the input, from 1.
    pub document: usize,
    /// Line in the input, from 1, where the parser knows it.
    pub line: Option<u64>,
    /// Kind and name of the object, once they are known.
    pub object: Option<String>,
    /// Path of the field from the document's root, empty for the document itself.
    pub path: String,
    /// What is wrong and what is expected.
    pub message: String,
}

impl std::error::Error for ManifestError {}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "document {}", self.document)?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        for part in [self.object.as_deref().unwrap_or(""), &self.path] {
            if !part.is_empty() {
                write!(f, ": {part}")?;
            }
        }
        write!(f, ": {}", self.message)
    }
}

/// Reads a manifest. The whole input is rejected with the first thing that is wrong in it.
///
/// # Errors
/// Input that is not UTF-8, YAML or JSON; an object without kind or name; a field of the wrong type or out of range; the same
/// object twice.
pub fn parse(bytes: &[u8], format: Format, interner: &mut Interner) -> Result<Manifest, ManifestError> {
    let text = std::str::from_utf8(bytes).map_err(|e| ManifestError {
        document: 1,
        line: Some(1 + bytes[..e.valid_up_to()].iter().filter(|b| **b == b'\n').count() as u64),
        object: None,
        path: String::new(),
        message: "not UTF-8: expected a YAML or JSON text".into(),
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut manifest = Manifest::default();
    let json = format == Format::Json || text.trim_start().starts_with('{');
    let outcome = match (json, format) {
        (true, Format::Json) => text::json(text, &mut manifest, interner),
        // A YAML flow mapping also starts with a brace: only the YAML parser's word counts then.
        (true, Format::Yaml) => text::json(text, &mut manifest, interner).or_else(|_| {
            manifest = Manifest::default();
            text::yaml(text, &mut manifest, interner)
        }),
        (false, _) => text::yaml(text, &mut manifest, interner),
    };
    outcome?;
    Ok(manifest)
}

/// Where the objects of one document go.
struct Collector<'a> {
    document: usize,
    manifest: &'a mut Manifest,
    interner: &'a mut Interner,
    /// Which document holds an object, to find the same object given twice.
    seen: &'a mut HashMap<ObjectKey, usize>,
    /// Set where an object is well-formed but wrong; the parser's own error is then only the messenger.
    invalid: Option<Invalid>,
}

impl Collector<'_> {
    fn converter(&mut self) -> Converter<'_> {
        Converter {
            interner: self.interner,
            ignored: &mut self.manifest.ignored,
        }
    }

    fn take<E: serde::de::Error>(&mut self, converted: Result<Option<Object>, Invalid>) -> Result<(), E> {
        let invalid = match converted {
            Ok(None) => return Ok(()),
            Ok(Some(object)) => {
                let key = object.key();
                match self.seen.get(&key) {
                    None => {
                        self.seen.insert(key, self.document);
                        self.manifest.objects.push(object);
                        return Ok(());
                    }
                    Some(document) => Invalid {
                        object: Some(key.to_string()),
                        path: String::new(),
                        message: format!("given twice: it is already in document {document}"),
                    },
                }
            }
            Err(invalid) => invalid,
        };
        let error = E::custom(&invalid.message);
        self.invalid = Some(invalid);
        Err(error)
    }
}

/// Second pass: builds the objects of one document (or item) whose kind is known.
struct ObjectSeed<'s, 'c> {
    kind: &'s Kind,
    out: &'s mut Collector<'c>,
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        use serde::Deserialize;
        let out = self.out;
        match self.kind {
            Kind::Service => {
                let raw = raw::RawService::deserialize(deserializer)?;
                let object = out.converter().service(&raw).map(Some);
                out.take(object)
            }
            Kind::EndpointSlice => {
                let raw = raw::RawSlice::deserialize(deserializer)?;
                let object = out.converter().slice(&raw);
                out.take(object)
            }
            Kind::Node => {
                let raw = raw::RawNode::deserialize(deserializer)?;
                let object = out.converter().node(&raw).map(Some);
                out.take(object)
            }
            Kind::List(kinds) => deserializer.deserialize_map(ListVisitor { kinds, out }),
            Kind::Other(kind) if let Some(wanted) = wrong_version(kind) => Err(D::Error::custom(format!(
                "`{kind}` is not read: write `apiVersion: {wanted}`"
            ))),
            Kind::Other(kind) => {
                *out.manifest.ignored.kinds.entry(kind.to_string()).or_default() += 1;
                IgnoredAny::deserialize(deserializer).map(|_| ())
            }
            Kind::Empty => IgnoredAny::deserialize(deserializer).map(|_| ()),
            Kind::Missing => Err(D::Error::custom("no kind: expected an object with apiVersion and kind")),
            Kind::NotAnObject => Err(D::Error::custom("expected an object with apiVersion and kind")),
        }
    }
}

/// The version to write, for an object that was certainly meant for us but names none or one that is not read. Kinds of the
/// same name in other API groups (a Knative Service) are others' and are passed over.
fn wrong_version(kind: &str) -> Option<&'static str> {
    let (version, name) = kind.rsplit_once(' ').unwrap_or(("", kind));
    match name {
        "Service" | "Node" if !version.contains('/') => Some("v1"),
        "EndpointSlice" if version.is_empty() || version.starts_with("discovery.k8s.io/") => {
            Some("discovery.k8s.io/v1")
        }
        _ => None,
    }
}

struct ListVisitor<'s, 'c> {
    kinds: &'s [Kind],
    out: &'s mut Collector<'c>,
}

impl<'de> Visitor<'de> for ListVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a List with items")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<raw::Str<'de>>()? {
            if key.as_ref() == "items" {
                let (kinds, out) = (self.kinds, &mut *self.out);
                map.next_value_seed(ItemsSeed { kinds, out })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct ItemsSeed<'s, 'c> {
    kinds: &'s [Kind],
    out: &'s mut Collector<'c>,
}

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut kinds = self.kinds.iter();
        loop {
            // The first pass saw as many items as this one; past the end only the end of the list is left.
            let kind = kinds.next().unwrap_or(&Kind::Empty);
            let out = &mut *self.out;
            if seq.next_element_seed(ObjectSeed { kind, out })?.is_none() {
                return Ok(());
            }
        }
    }
}
