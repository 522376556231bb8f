//! First pass over a document: which kinds of objects it holds, whatever the order of its keys. The API server writes
//! `kind` first, `kubectl -o json` sorts keys and writes it after `endpoints`; knowing the kind beforehand lets the
//! second pass build typed objects in one go, and lets objects of other kinds be skipped whatever their fields hold.

use super::raw::Str;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// What a document, or an item of a List, is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Service,
    EndpointSlice,
    Node,
    /// A List with its items in order.
    List(Vec<Kind>),
    /// Any other kind, printed `apiVersion kind`.
    Other(Box<str>),
    /// An object without `kind`, with whether it has `items`.
    Missing,
    /// Nothing at all (an empty YAML document).
    Empty,
    /// Not an object: a string, a number, a list.
    NotAnObject,
}

impl Kind {
    fn resolve(api_version: &str, kind: &str, items: Option<Vec<Kind>>) -> Self {
        let list = |default: Option<fn() -> Kind>| {
            let mut items = items.unwrap_or_default();
            if let Some(default) = default {
                for item in items.iter_mut().filter(|i| **i == Self::Missing) {
                    *item = default();
                }
            }
            Self::List(items)
        };
        match (api_version, kind) {
            ("v1", "Service") => Self::Service,
            ("discovery.k8s.io/v1", "EndpointSlice") => Self::EndpointSlice,
            ("v1", "Node") => Self::Node,
            ("v1", "List") => list(None),
            // Items of these lists carry no kind of their own when they come straight from the API server.
            ("v1", "ServiceList") => list(Some(|| Self::Service)),
            ("discovery.k8s.io/v1", "EndpointSliceList") => list(Some(|| Self::EndpointSlice)),
            ("v1", "NodeList") => list(Some(|| Self::Node)),
            (_, "") => Self::Missing,
            ("", kind) => Self::Other(kind.into()),
            (version, kind) => Self::Other(format!("{version} {kind}").into()),
        }
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

/// Consumes any value and keeps nothing but what `visit_map` finds.
macro_rules! scalars {
    ($value:expr) => {
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_i128<E>(self, _: i128) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_u128<E>(self, _: u128) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($value)
        }
        fn visit_bytes<E>(self, _: &[u8]) -> Result<Self::Value, E> {
            Ok($value)
        }
    };
}

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    scalars!(Kind::NotAnObject);

    fn visit_str<E>(self, _: &str) -> Result<Kind, E> {
        Ok(Kind::NotAnObject)
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Empty)
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Empty)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Kind, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Kind::NotAnObject)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
        let (mut api_version, mut kind, mut items) = (None, None, None);
        while let Some(key) = map.next_key::<Str<'de>>()? {
            match key.as_ref() {
                "apiVersion" => api_version = map.next_value::<Word<'de>>()?.0,
                "kind" => kind = map.next_value::<Word<'de>>()?.0,
                "items" => items = map.next_value::<Items>()?.0,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let text = |word: &Option<Str<'de>>| word.as_ref().map_or(String::new(), |w| w.as_ref().to_owned());
        Ok(Kind::resolve(&text(&api_version), &text(&kind), items))
    }
}

/// A string, or nothing where the value is of another type.
struct Word<'a>(Option<Str<'a>>);

impl<'de> Deserialize<'de> for Word<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WordVisitor)
    }
}

struct WordVisitor;

impl<'de> Visitor<'de> for WordVisitor {
    type Value = Word<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    scalars!(Word(None));

    fn visit_str<E>(self, v: &str) -> Result<Word<'de>, E> {
        Ok(Word(Some(Str::owned(v))))
    }

    fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Word<'de>, E> {
        Ok(Word(Some(Str::borrowed(v))))
    }

    fn visit_unit<E>(self) -> Result<Word<'de>, E> {
        Ok(Word(None))
    }

    fn visit_none<E>(self) -> Result<Word<'de>, E> {
        Ok(Word(None))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Word<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Word<'de>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Word(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Word<'de>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Word(None))
    }
}

/// The kinds of a list's items, or nothing where the value is no list.
struct Items(Option<Vec<Kind>>);

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemsVisitor)
    }
}

struct ItemsVisitor;

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = Items;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    scalars!(Items(None));

    fn visit_str<E>(self, _: &str) -> Result<Items, E> {
        Ok(Items(None))
    }

    fn visit_unit<E>(self) -> Result<Items, E> {
        Ok(Items(None))
    }

    fn visit_none<E>(self) -> Result<Items, E> {
        Ok(Items(None))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Items, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Items, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Items(Some(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Items, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Items(None))
    }
}
