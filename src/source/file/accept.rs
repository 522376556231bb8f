//! Which new contents come into force, and the changes that follow. No I/O.
//!
//! An object may be in one file only. Where new contents clash, every file of the clash that has new content keeps its last
//! good one; so what is in force never clashes, and moving an object between two files in one step is no clash.

use super::{Known, Parsed, SourceError};
use crate::model::Change;
use crate::source::manifest::{Object, ObjectKey};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// A file and the content it would like to have in force.
pub(super) struct Candidate {
    pub known: Known,
    pub new: Option<Parsed>,
}

impl Candidate {
    fn effective(&self) -> &Parsed {
        self.new.as_ref().unwrap_or(&self.known.good)
    }
}

/// The files as they are afterwards, and what changed.
pub(super) struct Outcome {
    pub files: BTreeMap<PathBuf, Known>,
    pub changes: Vec<Change>,
}

/// Decides over all files; `removed` are those that are no longer there.
pub(super) fn accept(mut candidates: BTreeMap<PathBuf, Candidate>, removed: BTreeMap<PathBuf, Known>) -> Outcome {
    if candidates.values().any(|c| c.new.is_some()) {
        // Each round takes at least one new content back, and contents in force do not clash: this ends.
        while refuse_clashes(&mut candidates) {}
    }

    let mut before: HashMap<ObjectKey, Object> = HashMap::new();
    let mut after: BTreeMap<ObjectKey, Object> = BTreeMap::new();
    for known in removed.into_values() {
        before.extend(known.good.objects);
    }
    for candidate in candidates.values_mut().filter(|c| c.new.is_some()) {
        before.extend(std::mem::take(&mut candidate.known.good.objects));
    }
    let mut files = BTreeMap::new();
    for (path, Candidate { mut known, new }) in candidates {
        if let Some(mut new) = new {
            for (key, object) in &mut new.objects {
                match before.remove(key) {
                    // Keep the copy that the store shares.
                    Some(held) if held == *object => *object = held,
                    _ => {
                        after.insert(key.clone(), object.clone());
                    }
                }
            }
            known.good = new;
            known.error = None;
        }
        files.insert(path, known);
    }
    let deleted: BTreeMap<_, _> = before.into_iter().filter(|(key, _)| !after.contains_key(key)).collect();
    let mut changes: Vec<Change> = deleted.into_keys().map(ObjectKey::into_deletion).collect();
    changes.extend(after.into_values().map(Object::into_change));
    Outcome { files, changes }
}

/// Takes back the new contents that clash. Returns whether there were any.
fn refuse_clashes(candidates: &mut BTreeMap<PathBuf, Candidate>) -> bool {
    let mut owners: HashMap<&ObjectKey, &PathBuf> = HashMap::new();
    let mut clashes: BTreeMap<PathBuf, (ObjectKey, PathBuf)> = BTreeMap::new();
    for (path, candidate) in candidates.iter() {
        // The least key, so that the message is the same each time.
        let mut first: Option<(&ObjectKey, &PathBuf)> = None;
        for key in candidate.effective().objects.keys() {
            match owners.get(key) {
                Some(other) if first.is_none_or(|(least, _)| key < least) => first = Some((key, other)),
                Some(_) => {}
                None => {
                    owners.insert(key, path);
                }
            }
        }
        if let Some((key, other)) = first {
            for (one, another) in [(path, other), (other, path)] {
                if candidates.get(one).is_some_and(|c| c.new.is_some()) {
                    clashes
                        .entry(one.clone())
                        .or_insert_with(|| (key.clone(), another.clone()));
                }
            }
        }
    }
    let found = !clashes.is_empty();
    for (path, (object, other)) in clashes {
        if let Some(candidate) = candidates.get_mut(&path) {
            candidate.known.waiting = candidate.new.take();
            candidate.known.error = Some(SourceError::Duplicate { path, object, other });
        }
    }
    found
}
