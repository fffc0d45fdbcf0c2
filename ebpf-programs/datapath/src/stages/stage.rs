//! How a stage becomes a global function, by its name.

/// Declares the global function of a stage.
macro_rules! stage {
    ($name:ident($($argument:ident: $type:ty),*) -> $output:ty, $body:expr) => {
        stage!(in_place $name($($argument: $type),*) -> $output, $body);
    };
    // With `new` in front, the stage writes by helpers: see `Kernel::in_place`.
    ($access:ident $name:ident($($argument:ident: $type:ty),*) -> $output:ty, $body:expr) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(skb: *mut __sk_buff $(, $argument: u64)*) -> u64 {
            let kernel = &mut Kernel::$access(skb);
            // The compiler would not pass a context that the stage does not use, and the verifier
            // requires one.
            kernel.touch_context();
            let Some(work) = maps::work(Scratch::Packet) else {
                return 0;
            };
            $(let $argument = <$type>::from_code($argument);)*
            let stage: fn(&mut Kernel, &mut Work $(, $type)*) -> $output = $body;
            stage(kernel, work $(, $argument)*).code()
        }
    };
}
