//! Verdicts, and their encoding as numbers: BPF-to-BPF functions return only numbers.

use abi::{Direction, DropReason};

/// The outcome of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass to the next program, or to the stack.
    Pass,
    /// Drop, and count under this reason.
    Drop(DropReason),
    /// Redirect to the pod behind the veth with this interface index, past bridge and stack
    /// (`bpf_redirect_peer`).
    RedirectPeer(u32),
    /// Redirect out of the node by the interface with this index, past the stack, to the next hop
    /// [`crate::Work::hop`] (`bpf_redirect_neigh`).
    RedirectNeigh(u32),
    /// Redirect out of the interface with this index, with MAC addresses and NAT already written
    /// (`bpf_redirect`).
    Redirect(u32),
    /// Take the packet: it is held, or its copies have been sent through the hook again.
    Consume,
}

/// The result of a stage, or the reason to drop the packet at once.
pub type Decision<T> = Result<T, DropReason>;

impl From<Decision<()>> for Verdict {
    #[inline(always)]
    fn from(decision: Decision<()>) -> Self {
        match decision {
            Ok(()) => Self::Pass,
            Err(reason) => Self::Drop(reason),
        }
    }
}

/// A value that can be encoded as a small number.
pub trait Code: Sized {
    /// Returns the number: below 256 for all that a [`Decision`] carries.
    fn code(self) -> u64;
    /// Returns the value of a number. Numbers that [`Code::code`] never returns give some value,
    /// never a panic.
    fn from_code(code: u64) -> Self;
}

/// Encodes an enum without fields by the numbers of its variants. The last one stands for all
/// numbers that no other one has.
macro_rules! code_of_variants {
    ($type:ident: $($variant:ident),+; else $rest:ident) => {
        impl $crate::outcome::Code for $type {
            #[inline(always)]
            fn code(self) -> u64 {
                self as u64
            }

            #[inline(always)]
            #[expect(non_upper_case_globals, reason = "named as the variants")]
            fn from_code(code: u64) -> Self {
                $(const $variant: u64 = $type::$variant as u64;)+
                match code {
                    $($variant => Self::$variant,)+
                    _ => Self::$rest,
                }
            }
        }
    };
}

pub(crate) use code_of_variants;

impl Code for () {
    #[inline(always)]
    fn code(self) -> u64 {
        0
    }

    #[inline(always)]
    fn from_code(_: u64) -> Self {}
}

impl Code for bool {
    #[inline(always)]
    fn code(self) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        code != 0
    }
}

impl Code for u32 {
    #[inline(always)]
    fn code(self) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        (code & 0xffff_ffff) as Self
    }
}

impl Code for u64 {
    #[inline(always)]
    fn code(self) -> u64 {
        self
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        code
    }
}

code_of_variants!(Direction: Egress; else Ingress);

/// Bit of [`Verdict::RedirectPeer`]; the interface index is below it.
const REDIRECT_PEER: u64 = 1 << 32;
/// Bit of [`Verdict::RedirectNeigh`]; the interface index is below it.
const REDIRECT_NEIGH: u64 = 1 << 33;
/// Bit of [`Verdict::Redirect`]; the interface index is below it.
const REDIRECT: u64 = 1 << 34;
/// Bit of [`Verdict::Consume`].
const CONSUME: u64 = 1 << 35;

impl Code for Verdict {
    #[inline(always)]
    fn code(self) -> u64 {
        match self {
            Self::Pass => Decision::Ok(()).code(),
            Self::Drop(reason) => Decision::<()>::Err(reason).code(),
            Self::RedirectPeer(interface) => REDIRECT_PEER | interface.code(),
            Self::RedirectNeigh(interface) => REDIRECT_NEIGH | interface.code(),
            Self::Redirect(interface) => REDIRECT | interface.code(),
            Self::Consume => CONSUME,
        }
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        if code & CONSUME != 0 {
            Self::Consume
        } else {
            Self::from_cached_code(code)
        }
    }
}

impl Verdict {
    /// As [`Code::from_code`], of a verdict that can be in a cache entry: never
    /// [`Verdict::Consume`]. With that one, which has no number, the compiler would copy an
    /// uninitialised register on the path of a hit, and the verifier refuses that.
    #[inline(always)]
    pub(crate) fn from_cached_code(code: u64) -> Self {
        if code & REDIRECT_PEER != 0 {
            Self::RedirectPeer(u32::from_code(code))
        } else if code & REDIRECT_NEIGH != 0 {
            Self::RedirectNeigh(u32::from_code(code))
        } else if code & REDIRECT != 0 {
            Self::Redirect(u32::from_code(code))
        } else {
            Self::from(Decision::<()>::from_code(code))
        }
    }
}

impl<T: Code> Code for Decision<T> {
    #[inline(always)]
    fn code(self) -> u64 {
        match self {
            Ok(value) => value.code(),
            Err(reason) => (reason as u64) << 8,
        }
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        match code >> 8 {
            0 => Ok(T::from_code(code)),
            reason => Err(reason_of(reason)),
        }
    }
}

/// Returns the reason with this number; an unknown number counts as malformed.
#[inline(always)]
fn reason_of(number: u64) -> DropReason {
    u32::try_from(number)
        .ok()
        .and_then(DropReason::from_number)
        .unwrap_or(DropReason::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_survives_as_a_number() {
        let verdicts = [
            Verdict::Pass,
            Verdict::Drop(DropReason::Martian),
            Verdict::RedirectPeer(1),
            Verdict::RedirectPeer(u32::MAX),
            Verdict::RedirectNeigh(1),
            Verdict::RedirectNeigh(u32::MAX),
            Verdict::Redirect(1),
            Verdict::Redirect(u32::MAX),
            Verdict::Consume,
        ];
        for verdict in verdicts {
            assert_eq!(Verdict::from_code(verdict.code()), verdict);
        }
    }

    #[test]
    fn every_reason_survives_as_a_number() {
        for reason in DropReason::ALL {
            assert_eq!(
                Decision::<()>::from_code(Decision::<()>::Err(reason).code()),
                Err(reason)
            );
        }
        assert_eq!(Decision::<bool>::from_code(Ok(true).code()), Ok(true));
        assert_eq!(Decision::<bool>::from_code(Ok(false).code()), Ok(false));
    }
}
