//! The names of the broker's links and connections, without their contents: a hand-over only passes
//! them on.

pub mod link {
    /// A link, as a task would keep it.
    #[derive(Debug, Default)]
    pub struct Link;

    pub mod connection {
        /// A connection, as a task would keep it.
        #[derive(Debug, Default)]
        pub struct Connection;
    }
}
