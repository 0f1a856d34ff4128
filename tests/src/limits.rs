//! Deadlines of the harness. Generous: a machine with two busy cores must pass, and what hangs
//! must fail before the runner's own limit.

use std::time::Duration;

/// A process says that it is ready.
pub const READY: Duration = Duration::from_secs(60);

/// A command ends.
pub const COMMAND: Duration = Duration::from_secs(120);

/// A clean end after SIGTERM or SIGINT: two seconds are promised, one more is the machine's.
pub const CLEAN_END: Duration = Duration::from_secs(3);

/// Anything else comes to be.
pub const SOON: Duration = Duration::from_secs(30);

/// Pause between two looks at a condition.
pub const POLL: Duration = Duration::from_millis(10);

const _: () = assert!(POLL.as_millis() < CLEAN_END.as_millis() / 10);
