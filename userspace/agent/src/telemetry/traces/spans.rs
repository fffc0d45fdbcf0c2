//! Spans of a command: the root, its phases, and their steps.

use std::time::{Instant, SystemTime};

use engine::{TimeSpan, TracedPhase, TracedStep};
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};

use crate::clock;

/// A trace's IDs, and the clocks when the command began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    trace: TraceId,
    /// Span of the command.
    pub(super) root: SpanId,
    begun: (Instant, SystemTime),
}

/// Place of a span in its trace.
struct Place {
    id: SpanId,
    parent: SpanId,
    is_remote: bool,
}

impl Context {
    /// Begins a command in the trace of `parent`, or in a new one.
    pub(super) fn begin(parent: &SpanContext) -> Self {
        let ids = RandomIdGenerator::default();
        Self {
            trace: if parent.is_valid() {
                parent.trace_id()
            } else {
                ids.new_trace_id()
            },
            root: ids.new_span_id(),
            begun: (Instant::now(), clock::system_time()),
        }
    }

    /// Returns the span of the command, which ends now.
    pub(super) fn root(
        &self,
        parent: SpanId,
        name: &'static str,
        attributes: Vec<KeyValue>,
        status: Status,
    ) -> SpanData {
        let place = Place {
            id: self.root,
            parent,
            is_remote: true,
        };
        let span = TimeSpan {
            begun: self.begun.0,
            ended: Instant::now(),
        };
        SpanData {
            span_kind: SpanKind::Server,
            attributes,
            status,
            ..self.span(&place, name, span, None)
        }
    }

    /// Returns the spans of a phase: its own, and those of its steps.
    pub(super) fn phase(&self, phase: TracedPhase) -> Vec<SpanData> {
        let place = Self::child_of(self.root);
        let own = self.span(&place, phase.phase.name(), phase.span, phase.failure);
        let of_step = |step| self.step(place.id, step);
        [own]
            .into_iter()
            .chain(phase.steps.into_iter().map(of_step))
            .collect()
    }

    fn step(&self, phase: SpanId, step: TracedStep) -> SpanData {
        let place = Self::child_of(phase);
        SpanData {
            attributes: vec![KeyValue::new("viaduct.step", step.text)],
            ..self.span(&place, step.name, step.span, step.failure)
        }
    }

    fn child_of(parent: SpanId) -> Place {
        Place {
            id: RandomIdGenerator::default().new_span_id(),
            parent,
            is_remote: false,
        }
    }

    fn span(
        &self,
        place: &Place,
        name: &'static str,
        span: TimeSpan,
        failure: Option<String>,
    ) -> SpanData {
        let state = TraceState::default();
        SpanData {
            span_context: SpanContext::new(self.trace, place.id, TraceFlags::SAMPLED, false, state),
            parent_span_id: place.parent,
            parent_span_is_remote: place.is_remote,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: self.time(span.begun),
            end_time: self.time(span.ended),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: failure.map_or(Status::Unset, Status::error),
            instrumentation_scope: InstrumentationScope::builder("viaductd").build(),
        }
    }

    /// Returns the time of day at `instant`. All spans of a trace use one reading of the clock, so
    /// that they nest although the clock is set meanwhile.
    fn time(&self, instant: Instant) -> SystemTime {
        let (begun, time) = self.begun;
        time + instant.saturating_duration_since(begun)
    }
}
