//! Structures whose layout is stated, and can be compared with that of a C header.

/// The layout of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// Its octets.
    pub size: usize,
    /// Its members and their offsets.
    pub members: &'static [(&'static str, usize)],
}

/// Octets of a mutex of C, which processors have in several sizes.
pub(super) const MUTEX: usize = size_of::<nix::libc::pthread_mutex_t>();

/// Defines structures of C. The number behind each name is its size. Members that stand behind an
/// `@ offset` are checked to lie there.
macro_rules! c_structs {
    ($( $(#[$attribute:meta])* $name:ident $size:tt {
        $( $member:ident : $type:ty $(, @ $offset:tt)? ; )*
    } )*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $( pub $member: $type, )* }

            const _: () = {
                assert!(size_of::<$name>() == $size);
                $( $( assert!(std::mem::offset_of!($name, $member) == $offset); )? )*
            };
        )*

        pub(super) const LAYOUTS: &[super::layout::Layout] = &[ $(
            super::layout::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                members: &[ $( (stringify!($member), std::mem::offset_of!($name, $member)), )* ],
            },
        )* ];
    };
}
