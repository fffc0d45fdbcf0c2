//! Foreign programs on the same kernel.

use aya::Ebpf;
use aya::programs::tc::{NlOptions, TcAttachOptions, TcHandle};
use aya::programs::{SchedClassifier, TcAttachType};

use super::{Node, load_foreign_object};

/// A foreign classifier, attached to any link and side.
pub(crate) struct ForeignProgram {
    object: Ebpf,
}

impl ForeignProgram {
    pub(crate) fn new(node: &Node) -> Self {
        let mut object = load_foreign_object(node);
        program(&mut object).load().expect("a program that loads");
        Self { object }
    }

    pub(crate) fn attach(&mut self, link: &str, side: TcAttachType, options: TcAttachOptions) {
        let program = program(&mut self.object);
        program
            .attach_with_options(link, side, options)
            .expect("a place for it");
    }

    pub(crate) fn filter(&mut self, link: &str, side: TcAttachType, priority: u16) {
        let options = NlOptions {
            priority,
            handle: TcHandle::new(0, 1),
            classid: None,
        };
        self.attach(link, side, TcAttachOptions::Netlink(options));
    }
}

fn program(object: &mut Ebpf) -> &mut SchedClassifier {
    let program = object
        .program_mut("to_pod")
        .expect("a program of this name");
    program.try_into().expect("a classifier")
}
