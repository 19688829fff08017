package git

// File is a file of a commit.
type File struct {
	Size int64
	Mode uint32 // as in the tree
	Data []byte // nil: there are no bytes, or more than were wanted
}
