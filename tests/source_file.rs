//! The file source: what is picked up, what is refused, what stays.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use nodeward::model::Change;
use nodeward::source::file::{FileSource, SourceError};
use nodeward::store::Store;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Bed {
    dir: TempDir,
    source: FileSource,
    store: Store,
}

impl Bed {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let source = FileSource::open(dir.path()).unwrap();
        let mut bed = Self {
            dir,
            source,
            store: Store::new(),
        };
        bed.load();
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Loads, feeds the store, and returns how many changes came.
    fn load(&mut self) -> usize {
        let changes = self.source.load();
        let count = changes.len();
        self.store.apply(changes);
        count
    }

    /// Names of the Services in the store.
    fn services(&self) -> BTreeSet<String> {
        let known = self.store.services().filter(|(_, s)| s.service().is_some());
        known.map(|(n, _)| n.name.to_string()).collect()
    }

    /// ClusterIP of a Service.
    fn ip(&self, name: &str) -> String {
        let name = nodeward::model::ObjectName::new("default", name);
        let service = self.store.get(&name).unwrap().service().unwrap().clone();
        service.cluster_ips[0].1.to_string()
    }

    fn errors(&self) -> Vec<String> {
        self.source.errors().iter().map(|e| e.to_string()).collect()
    }

    /// Waits until the kernel reported something worth a load.
    fn wait(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        while !self.source.drain() {
            assert!(Instant::now() < end, "no event came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn svc(name: &str, ip: u8) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: 10.96.0.{ip}, ports: [{{port: 80}}]}}\n"
    )
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[test]
fn a_folder_is_read_flat_and_without_hidden_files() {
    let json = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"c"}}"#;
    let both = format!("{}---\n{}", svc("a", 1), svc("b", 2));
    let mut bed = Bed::new(&[
        ("x.yaml", &both),
        ("y.json", json),
        (".hidden.yaml", "{"),
        ("readme.txt", "{"),
        ("e.yml", ""),
    ]);
    fs::create_dir(bed.path("folder.yaml")).unwrap();
    bed.load();
    assert_eq!(bed.services(), set(&["a", "b", "c"]));
    assert_eq!(bed.errors(), [""; 0]);
    assert_eq!(bed.source.counts(), (3, 3));
    assert_eq!(bed.load(), 0, "nothing changed");
}

#[test]
fn edits_renames_and_removals_are_followed() {
    let mut bed = Bed::new(&[("a.yaml", &svc("a", 1)), ("b.yaml", &svc("b", 2))]);
    bed.write("a.yaml", &svc("a", 3));
    bed.wait();
    assert_eq!(bed.load(), 1, "only the file that changed");
    assert_eq!(bed.ip("a"), "10.96.0.3");

    // Atomic replacement: written beside it under a name that is not read, then renamed.
    bed.write("a.yaml.tmp", &svc("a", 4));
    bed.load();
    assert_eq!(bed.ip("a"), "10.96.0.3");
    fs::rename(bed.path("a.yaml.tmp"), bed.path("a.yaml")).unwrap();
    bed.wait();
    bed.load();
    assert_eq!(bed.ip("a"), "10.96.0.4");

    // A mere renaming changes no object.
    fs::rename(bed.path("a.yaml"), bed.path("z.yaml")).unwrap();
    bed.wait();
    assert_eq!(bed.load(), 0);
    assert_eq!(bed.services(), set(&["a", "b"]));

    fs::remove_file(bed.path("z.yaml")).unwrap();
    bed.wait();
    assert_eq!(bed.load(), 1);
    assert_eq!(bed.services(), set(&["b"]));
}

/// The way a mounted ConfigMap changes: files are links through `..data`, which is swapped by a rename.
#[test]
fn a_configmap_swap_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let version = |n: u8| {
        let folder = dir.path().join(format!("..2026_{n}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.yaml"), svc("a", n)).unwrap();
        let temporary = dir.path().join("..data_tmp");
        symlink(folder.file_name().unwrap(), &temporary).unwrap();
        fs::rename(&temporary, dir.path().join("..data")).unwrap();
    };
    version(1);
    symlink("..data/a.yaml", dir.path().join("a.yaml")).unwrap();
    for path in [dir.path().to_owned(), dir.path().join("a.yaml")] {
        let mut bed = Bed {
            dir: tempfile::tempdir().unwrap(),
            source: FileSource::open(&path).unwrap(),
            store: Store::new(),
        };
        bed.load();
        assert_eq!(bed.ip("a"), "10.96.0.1");
        version(2);
        bed.wait();
        assert_eq!(bed.load(), 1);
        assert_eq!(bed.ip("a"), "10.96.0.2");
        // Back for the second round.
        fs::remove_dir_all(dir.path().join("..2026_1")).unwrap();
        fs::remove_dir_all(dir.path().join("..2026_2")).unwrap();
        version(1);
    }
}

#[test]
fn a_bad_file_is_refused_whole_and_others_go_on() {
    let mut bed = Bed::new(&[("a.yaml", &svc("a", 1)), ("b.yaml", &svc("b", 2))]);
    bed.write(
        "a.yaml",
        &format!("{}---\n{}", svc("a", 9), svc("c", 3).replace("80", "80000")),
    );
    bed.write("b.yaml", &svc("b", 8));
    bed.load();
    assert_eq!((bed.ip("a"), bed.ip("b")), ("10.96.0.1".into(), "10.96.0.8".into()));
    let [error] = &bed.errors()[..] else {
        panic!("one error expected: {:?}", bed.errors())
    };
    let file = bed.path("a.yaml").display().to_string();
    for part in [file.as_str(), "document 2", "line 9", "spec.ports[0].port", "80000"] {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
    assert_eq!(bed.load(), 0);
    assert_eq!(bed.errors().len(), 1, "the error stays as long as the file is bad");

    bed.write("a.yaml", &svc("a", 5));
    bed.load();
    assert_eq!((bed.ip("a"), bed.errors().len()), ("10.96.0.5".into(), 0));

    // Bad, then as it was before: nothing changes, the error goes.
    bed.write("a.yaml", "kind: [");
    bed.load();
    assert_eq!(bed.errors().len(), 1);
    bed.write("a.yaml", &svc("a", 5));
    assert_eq!(bed.load(), 0);
    assert_eq!(bed.errors(), [""; 0]);

    // Bad, then removed: its objects go with it.
    bed.write("a.yaml", "kind: [");
    bed.load();
    fs::remove_file(bed.path("a.yaml")).unwrap();
    bed.load();
    assert_eq!((bed.services(), bed.errors().len()), (set(&["b"]), 0));
}

#[test]
fn one_object_in_two_files_is_refused_until_it_is_in_one() {
    let mut bed = Bed::new(&[("a.yaml", &svc("a", 1)), ("b.yaml", &svc("b", 2))]);
    bed.write("b.yaml", &format!("{}---\n{}", svc("b", 3), svc("a", 4)));
    assert_eq!(bed.load(), 0, "b.yaml is refused whole");
    let [error] = &bed.errors()[..] else {
        panic!("{:?}", bed.errors())
    };
    for part in ["b.yaml: ", "a.yaml", "Service default/a", "one file only"] {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
    assert_eq!(bed.load(), 0);
    assert_eq!(bed.errors().len(), 1);

    // The other file gives the object up: the refused content comes into force without being touched.
    bed.write("a.yaml", &svc("x", 9));
    bed.load();
    assert_eq!(bed.services(), set(&["a", "b", "x"]));
    assert_eq!(
        (bed.ip("a"), bed.ip("b"), bed.errors().len()),
        ("10.96.0.4".into(), "10.96.0.3".into(), 0)
    );

    // Both change at once and clash: both keep what they had.
    bed.write("a.yaml", &svc("n", 5));
    bed.write("b.yaml", &svc("n", 6));
    assert_eq!(bed.load(), 0);
    assert_eq!(bed.errors().len(), 2);
    assert_eq!(bed.services(), set(&["a", "b", "x"]));

    // A new pair that clashes from the start has no good state to keep.
    let bed = Bed::new(&[
        ("a.yaml", &svc("a", 1)),
        ("b.yaml", &svc("a", 1)),
        ("c.yaml", &svc("c", 1)),
    ]);
    assert_eq!((bed.services(), bed.errors().len()), (set(&["c"]), 2));
}

/// Moving an object in one step is fine; the store never sees it gone.
#[test]
fn an_object_may_move_between_files() {
    let mut bed = Bed::new(&[("a.yaml", &svc("a", 1)), ("b.yaml", &svc("b", 2))]);
    bed.write("a.yaml", &svc("b", 2));
    bed.write("b.yaml", &svc("a", 1));
    assert_eq!(bed.load(), 0);
    assert_eq!((bed.services(), bed.errors().len()), (set(&["a", "b"]), 0));
    fs::remove_file(bed.path("b.yaml")).unwrap();
    bed.write("c.yaml", &svc("a", 7));
    let changes = bed.source.load();
    assert!(
        matches!(&changes[..], [Change::Service(s)] if *s.name.name == *"a"),
        "{changes:?}"
    );
}

/// A prefix of YAML is often good YAML: a file is read when it is closed.
#[test]
fn a_half_written_file_is_read_when_it_is_closed() {
    let both = format!("{}---\n{}", svc("a", 1), svc("b", 2));
    let mut bed = Bed::new(&[("x.yaml", &both), ("y.yaml", &svc("y", 3))]);
    let mut file = fs::File::create(bed.path("x.yaml")).unwrap();
    file.write_all(svc("a", 7).as_bytes()).unwrap();
    bed.write("y.yaml", &svc("y", 4));
    bed.wait();
    bed.load();
    assert_eq!(
        (bed.services(), bed.ip("a"), bed.ip("y")),
        (set(&["a", "b", "y"]), "10.96.0.1".into(), "10.96.0.4".into())
    );
    file.write_all(format!("---\n{}", svc("b", 8)).as_bytes()).unwrap();
    assert_eq!(bed.load(), 0);
    drop(file);
    bed.wait();
    bed.load();
    assert_eq!((bed.ip("a"), bed.ip("b")), ("10.96.0.7".into(), "10.96.0.8".into()));
}

/// Same size, same second, same inode.
#[test]
fn edits_within_one_second_are_told_apart() {
    let mut bed = Bed::new(&[("a.yaml", &svc("a", 1))]);
    for round in 0..50u8 {
        let ip = 10 + round;
        bed.write("a.yaml", &svc("a", ip));
        assert_eq!(bed.load(), 1);
        assert_eq!(bed.ip("a"), format!("10.96.0.{ip}"));
    }
}

#[test]
fn a_storm_of_events_ends_in_the_last_state() {
    let mut bed = Bed::new(&[("a.yaml", &svc("a", 1))]);
    // More than the kernel's queue holds.
    for round in 0..6000 {
        let name = format!("s{}.yaml", round % 7);
        bed.write(&name, &svc(&format!("s{}", round % 7), (round % 200) as u8));
        fs::rename(bed.path(&name), bed.path(&format!("t{}.yaml", round % 7))).unwrap();
    }
    bed.write("a.yaml", &svc("a", 77));
    bed.wait();
    bed.load();
    assert_eq!(bed.ip("a"), "10.96.0.77");
    assert_eq!(bed.services().len(), 8);
    let last = (0..6000).rev().find(|round| round % 7 == 0).unwrap();
    assert_eq!(bed.ip("s0"), format!("10.96.0.{}", last % 200));
    assert!(!bed.source.drain(), "nothing is left in the queue");
    assert_eq!((bed.load(), bed.errors().len()), (0, 0));
}

#[test]
fn a_folder_that_goes_away_keeps_the_last_good_state() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("manifests");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), svc("a", 1)).unwrap();
    let mut bed = Bed {
        source: FileSource::open(&folder).unwrap(),
        dir,
        store: Store::new(),
    };
    bed.load();
    fs::rename(&folder, bed.path("elsewhere")).unwrap();
    bed.wait();
    assert_eq!(bed.load(), 0);
    assert!(
        bed.errors()[0].contains("gone") && bed.errors()[0].contains("manifests"),
        "{:?}",
        bed.errors()
    );
    assert_eq!(bed.services(), set(&["a"]));

    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("b.yaml"), svc("b", 1)).unwrap();
    bed.load();
    assert_eq!((bed.services(), bed.errors().len()), (set(&["b"]), 0));
    fs::write(folder.join("b.yaml"), svc("b", 2)).unwrap();
    bed.wait();
    bed.load();
    assert_eq!(bed.ip("b"), "10.96.0.2");
}

#[test]
fn a_single_file_is_followed_through_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.txt");
    fs::write(&file, svc("a", 1)).unwrap();
    fs::write(dir.path().join("other.yaml"), svc("b", 1)).unwrap();
    let mut bed = Bed {
        source: FileSource::open(&file).unwrap(),
        dir,
        store: Store::new(),
    };
    bed.load();
    assert_eq!(bed.services(), set(&["a"]), "only that file");
    let temporary = bed.path("new");
    fs::write(&temporary, svc("a", 2)).unwrap();
    fs::rename(&temporary, &file).unwrap();
    bed.wait();
    bed.load();
    assert_eq!(bed.ip("a"), "10.96.0.2");
    fs::remove_file(&file).unwrap();
    bed.wait();
    assert_eq!((bed.load(), bed.services()), (0, set(&["a"])));
    assert!(bed.errors()[0].contains("gone"), "{:?}", bed.errors());
    fs::write(&file, svc("c", 3)).unwrap();
    bed.wait();
    bed.load();
    assert_eq!((bed.services(), bed.errors().len()), (set(&["c"]), 0));
}

#[test]
fn what_cannot_be_opened_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("later");
    let error = FileSource::open(&missing).err().unwrap();
    assert!(matches!(&error, SourceError::Unreadable { path, .. } if *path == missing));
    assert!(error.to_string().contains("later"), "{error}");
    assert!(FileSource::open(Path::new("no-such-file.yaml")).is_err());
}

/// Root reads everything, so the unreadable file is a link that goes round in circles.
#[test]
fn an_unreadable_file_keeps_its_last_good_state() {
    let mut bed = Bed::new(&[("a.yaml", &svc("a", 1)), ("b.yaml", &svc("b", 1))]);
    fs::remove_file(bed.path("a.yaml")).unwrap();
    symlink("a.yaml", bed.path("a.yaml")).unwrap();
    bed.wait();
    assert_eq!(bed.load(), 0);
    assert!(bed.errors()[0].contains("a.yaml"), "{:?}", bed.errors());
    assert_eq!(bed.services(), set(&["a", "b"]));
    fs::remove_file(bed.path("a.yaml")).unwrap();
    bed.write("a.yaml", &svc("a", 1));
    assert_eq!((bed.load(), bed.errors().len()), (0, 0));
}

#[test]
fn a_change_of_permissions_is_noticed() {
    let mut bed = Bed::new(&[("a.yaml", &svc("a", 1))]);
    bed.source.drain();
    fs::set_permissions(bed.path("a.yaml"), fs::Permissions::from_mode(0o600)).unwrap();
    bed.wait();
    assert_eq!(bed.load(), 0);
}

/// Opening a pipe would wait for ever; a device never ends. Neither may hold the others up.
#[test]
fn pipes_and_devices_are_refused_and_hold_nothing_up() {
    let mut bed = Bed::new(&[]);
    let made = std::process::Command::new("mkfifo")
        .arg(bed.path("pipe.yaml"))
        .status()
        .unwrap();
    assert!(made.success());
    symlink("/dev/zero", bed.path("device.yaml")).unwrap();
    bed.write(
        "good.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: good}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 53}]}\n",
    );
    bed.wait();
    bed.load();
    assert!(bed.services().contains("good"));
    let errors = bed.errors().join("\n");
    for name in ["pipe.yaml", "device.yaml"] {
        assert!(errors.contains(name), "{name} is not in: {errors}");
    }
    assert!(errors.contains("not a regular file"), "{errors}");
}
