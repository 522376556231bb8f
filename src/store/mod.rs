//! The revisioned cluster state: what every source feeds and every view is computed from.
