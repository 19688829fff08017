package git

// Version says of which state of a repository's refs something is. Of two with the same incarnation and epoch the one
// with the higher generation is newer, or the same; otherwise nothing that was known before holds.
type Version struct {
	Incarnation string // of the repository: changes when it is made anew, and when it is moved
	Epoch       uint64 // of the node that owns it: rises when that starts
	Generation  uint64 // of the refs: rises when they change, and may when the repository is opened anew
}
