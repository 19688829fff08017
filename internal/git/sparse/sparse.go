// Package sparse matches paths with the patterns of a sparse-checkout file, as the filter sparse:oid does.
//
// The file has the format of gitignore(5), but its patterns select what to include. The last pattern that matches a
// path decides. If none matches, the decision for the parent directory holds. The root is a directory with an empty
// path, which patterns for base names such as "*" match too; without a match it is excluded. The filter sends all
// trees, so that the patterns choose among blobs only. A blob is sent if one of its paths is included.
//
// Results are those of git with core.ignoreCase unset. The time for one path and one pattern is bounded by the product
// of their lengths.
package sparse

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Limits of Parse. With them, Patterns take at most a few MiB.
const (
	maxSize     = 256 << 10
	maxPatterns = 10_000
)

// Decision is what the patterns say about a path.
type Decision uint8

// Undecided means that no pattern matches: the decision for the parent directory holds.
const (
	Undecided Decision = iota
	Include
	Exclude
)

func (d Decision) String() string { return [...]string{"undecided", "include", "exclude"}[d] }

// Patterns are the patterns of a sparse-checkout file. The zero value has none. They are safe for concurrent use.
type Patterns struct{ list []pattern }

// Len returns the number of patterns, without those that match no path.
func (p *Patterns) Len() int { return len(p.list) }

// pattern is one line of the file. It matches a text that begins with prefix if glob matches the rest. The text is the
// path or its base name.
type pattern struct {
	decision Decision
	dirOnly  bool // matches only directories
	base     bool // matches the base name
	prefix   []byte
	glob     glob
}

// Parse reads a sparse-checkout file. Malformed patterns match nothing, as in git. The error is of kind Invalid if the
// file has more than 256 KiB or 10,000 patterns. It is also Invalid if a pattern has more than 1,023 elements from its
// first special character on.
func Parse(data []byte) (*Patterns, error) {
	if len(data) > maxSize {
		return nil, fault.New(fault.Invalid, "sparse-checkout file: %d bytes, more than %d", len(data), maxSize)
	}
	p := new(Patterns)
	data = bytes.TrimPrefix(bytes.Clone(data), []byte("\xef\xbb\xbf"))
	for n := 1; len(data) > 0; n++ {
		var line []byte
		line, data, _ = bytes.Cut(data, []byte("\n"))
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		parsed, ok := parseLine(trimLine(line))
		if !ok {
			continue
		}
		if parsed.glob.len() > maxTokens {
			return nil, fault.New(fault.Invalid, "sparse-checkout file: the pattern in line %d is too long", n)
		}
		if len(p.list) == maxPatterns {
			return nil, fault.New(fault.Invalid, "sparse-checkout file: more than %d patterns", maxPatterns)
		}
		p.list = append(p.list, parsed)
	}
	return p, nil
}

// trimLine removes what git does not read: a carriage return at the end, everything from a NUL on, and spaces at the
// end unless they are escaped.
func trimLine(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\r"))
	line, _, _ = bytes.Cut(line, []byte{0})
	end := 0 // after the last byte to keep
	for i := 0; i < len(line); i++ {
		if line[i] == ' ' {
			continue
		}
		if line[i] == '\\' {
			i++
		}
		end = min(i+1, len(line))
	}
	return line[:end]
}

// parseLine parses one pattern. An empty one matches the root. ok is false if the pattern cannot match.
func parseLine(line []byte) (p pattern, ok bool) {
	p.decision = Include
	if bytes.HasPrefix(line, []byte("!")) {
		p.decision, line = Exclude, line[1:]
	}
	if n := len(line); n > 0 && line[n-1] == '/' {
		p.dirOnly, line = true, line[:n-1]
	}
	p.base = bytes.IndexByte(line, '/') < 0
	if !p.base && line[0] == '/' {
		line = line[1:]
	}
	prefix := bytes.IndexAny(line, `*?[\`)
	if prefix < 0 {
		prefix = len(line)
	}
	p.prefix = line[:prefix]
	// A "**" after the prefix is at the beginning for git as well.
	p.glob, ok = compile(line[prefix:], !p.base)
	return p, ok
}

// Match returns the decision of the last pattern that matches a path. The path is relative to the root, without a slash
// at the end.
func (p *Patterns) Match(path []byte, isDir bool) Decision {
	name := path[bytes.LastIndexByte(path, '/')+1:]
	for i := len(p.list) - 1; i >= 0; i-- {
		if q := &p.list[i]; (isDir || !q.dirOnly) && q.matches(path, name) {
			return q.decision
		}
	}
	return Undecided
}

// State returns a key of a directory, which is not the root. In directories with the same key, the patterns decide the
// same about everything with the same path below the directory.
func (p *Patterns) State(path []byte) string {
	path = append(bytes.Clone(path), '/')
	var key []byte
	for i := range p.list {
		q := &p.list[i]
		if q.base {
			continue
		}
		if bytes.HasPrefix(q.prefix, path) { // the rest of the prefix follows
			key = binary.AppendUvarint(append(binary.AppendUvarint(key, uint64(i)), 0), uint64(len(path)))
			continue
		}
		rest, ok := bytes.CutPrefix(path, q.prefix)
		if !ok {
			continue
		}
		if set := q.glob.after(rest); slices.Max(set) > 0 {
			key = append(binary.AppendUvarint(key, uint64(i)), 1)
			for _, word := range set {
				key = binary.LittleEndian.AppendUint64(key, word)
			}
		}
	}
	return string(key)
}

func (p *pattern) matches(path, name []byte) bool {
	switch {
	case p.base:
		path = name
	case len(path) == 0: // git does not compare the root with paths
		return false
	}
	rest, ok := bytes.CutPrefix(path, p.prefix)
	return ok && p.glob.match(rest)
}
