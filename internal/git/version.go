package git

// Version is the version of a repository's refs. Of two versions with equal incarnation and epoch, the one with the
// higher generation is newer. Otherwise they cannot be compared, and everything that is cached is invalid.
type Version struct {
	Incarnation string // of the repository: changes when it is created again or moved
	Epoch       uint64 // of its node: increases at each start. In a store: increases when the path gets a repository
	Generation  uint64 // of the refs: increases when they change, and possibly when the repository is opened again
}
