package native

import "github.com/packhorse-git/packhorse/internal/git"

// earlier is a pack of the Library, with the content of its index.
type earlier struct {
	// closed reports whether the pack was made without haves and shallow commits, and with the new pack's filter. Then it
	// has all objects that its wants reach and that the filter lets pass.
	closed bool
	wants  []git.ObjectID // sorted: the wants, and the tags that were added to them
}
