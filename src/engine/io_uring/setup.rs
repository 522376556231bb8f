//! Making a ring, and saying exactly why it cannot be had.

use io_uring::{IoUring, Probe, opcode};
use std::io;

/// Why io_uring cannot carry the data plane here.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The kernel has no io_uring.
    #[error("this kernel has no io_uring (io_uring_setup: {0}); kernel 6.1 or newer is needed")]
    Missing(io::Error),
    /// Something forbids it.
    #[error("io_uring is forbidden here (io_uring_setup: {error}): {cause}")]
    Forbidden {
        /// The kernel's answer.
        error: io::Error,
        /// The likely cause and what to do.
        cause: String,
    },
    /// Locked memory or descriptors are short.
    #[error("io_uring lacks resources ({0}): raise the limits on locked memory (ulimit -l) and open files (ulimit -n)")]
    Resources(io::Error),
    /// The kernel is too old.
    #[error("this kernel's io_uring is too old ({0}); kernel 6.1 or newer is needed")]
    TooOld(String),
    /// Anything else.
    #[error("setting up io_uring: {0}")]
    Other(io::Error),
}

fn classify(error: io::Error) -> SetupError {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => SetupError::Missing(error),
        Some(libc::EPERM | libc::EACCES) => SetupError::Forbidden {
            cause: forbidden_cause(),
            error,
        },
        Some(libc::ENOMEM | libc::EMFILE | libc::ENFILE) => SetupError::Resources(error),
        Some(libc::EINVAL) => SetupError::TooOld("it refuses SINGLE_ISSUER and DEFER_TASKRUN".to_owned()),
        _ => SetupError::Other(error),
    }
}

fn forbidden_cause() -> String {
    match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .as_deref()
        .map(str::trim)
    {
        Ok("2") => "sysctl kernel.io_uring_disabled is 2; set it to 0 or 1".to_owned(),
        Ok("1") => "sysctl kernel.io_uring_disabled is 1: give the process CAP_SYS_ADMIN or a group in \
                    kernel.io_uring_group, or set it to 0"
            .to_owned(),
        _ => "most likely a seccomp profile (the default one of containerd and Docker forbids it): allow \
              io_uring_setup, io_uring_enter and io_uring_register"
            .to_owned(),
    }
}

/// Makes a ring with the flags a worker wants: one issuer, completions run only when it asks. The newest optional flag is
/// given up where the kernel does not know it. Returns the ring and the flags in words.
pub fn ring(sq_entries: u32, cq_entries: u32) -> Result<(IoUring, &'static str), SetupError> {
    let build = |no_sqarray: bool| {
        let mut builder = IoUring::builder();
        builder
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_submit_all()
            .setup_cqsize(cq_entries)
            .setup_clamp();
        if no_sqarray {
            builder.setup_no_sqarray();
        }
        builder.build(sq_entries)
    };
    let (ring, flags) = match build(true) {
        Ok(ring) => (ring, "single_issuer,defer_taskrun,coop_taskrun,submit_all,no_sqarray"),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (
            build(false).map_err(classify)?,
            "single_issuer,defer_taskrun,coop_taskrun,submit_all",
        ),
        Err(error) => return Err(classify(error)),
    };
    require(&ring)?;
    Ok((ring, flags))
}

fn require(ring: &IoUring) -> Result<(), SetupError> {
    let params = ring.params();
    if !params.is_feature_ext_arg() || !params.is_feature_skip_cqe_on_success() || !params.is_feature_nodrop() {
        return Err(SetupError::TooOld(
            "features EXT_ARG, CQE_SKIP or NODROP are missing".to_owned(),
        ));
    }
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => SetupError::TooOld("it cannot be asked which operations it has".to_owned()),
            _ => classify(error),
        })?;
    for (code, name) in [
        (opcode::RecvMsg::CODE, "RECVMSG"),
        (opcode::SendMsg::CODE, "SENDMSG"),
        (opcode::Read::CODE, "READ"),
        (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
    ] {
        if !probe.is_supported(code) {
            return Err(SetupError::TooOld(format!("operation {name} is missing")));
        }
    }
    Ok(())
}
