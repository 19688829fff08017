package fault

// maxName is the maximum size of a name in a message, in bytes.
const maxName = 200

// Short returns a name that a client chose, such as a path or a ref, for a message: at most 200 bytes of it.
func Short[T ~string | ~[]byte](name T) string { return Cut(string(name), maxName) }

// Cut returns at most limit bytes of a name. A long name loses its middle: its end says most about it.
func Cut(name string, limit int) string {
	const gap = "..."
	if len(name) <= limit {
		return name
	}
	head := limit / 4
	return name[:head] + gap + name[len(name)-(limit-head-len(gap)):]
}
