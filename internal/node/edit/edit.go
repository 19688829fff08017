// Package edit makes commits from requests, without a working copy: their headers, signatures and trees. Results are
// those of git commit-tree, git update-index and git write-tree. Package write makes them visible.
package edit

import (
	"bytes"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// Header is what a commit has besides its tree and its parents. All parts have to be valid: Lines, CheckMessage,
// CheckExtra and NewKey return such.
type Header struct {
	Author, Committer string  // the lines without their keywords: "NAME <EMAIL> SECONDS OFFSET"
	Extra             []byte  // further lines, each with its newline
	Message           []byte  // byte for byte
	Key               Key     // the zero value: none
	Signer            *Signer // nil: the commit is not signed
}

// Commit makes the commit with a tree and parents.
func (h *Header) Commit(format git.ObjectFormat, tree git.ObjectID, parents ...git.ObjectID) (*write.Object, error) {
	var b bytes.Buffer
	b.WriteString("tree " + tree.String() + "\n")
	for _, p := range parents {
		b.WriteString("parent " + p.String() + "\n")
	}
	b.WriteString("author " + h.Author + "\ncommitter " + h.Committer + "\n")
	b.Write(h.Extra)
	b.WriteString(h.Key.line())
	header := b.Len()
	b.WriteByte('\n')
	b.Write(h.Message)
	data := b.Bytes()
	if h.Signer != nil {
		signature, err := h.Signer.header(format, data)
		if err != nil {
			return nil, err
		}
		data = slices.Insert(data, header, signature...)
	}
	return write.NewObject(format, git.Commit, data), nil
}

// CheckMessage returns the message of a commit. A text gets a final newline if it has none, like in git commit-tree. A
// raw message replaces the text, and is not changed.
func CheckMessage(text string, raw []byte) ([]byte, error) {
	message := raw
	if len(raw) == 0 {
		message = []byte(text)
		if text != "" && !strings.HasSuffix(text, "\n") {
			message = append(message, '\n')
		}
	} else if text != "" {
		return nil, fault.InField("raw_message", fault.New(fault.Invalid, "set either message or raw_message"))
	}
	if bytes.IndexByte(message, 0) >= 0 {
		return nil, fault.InField("message", fault.New(fault.Invalid, "it contains a NUL byte"))
	}
	return message, nil
}

// standardLines are the lines that every commit has, or that have a field of their own.
var standardLines = []string{"tree", "parent", "author", "committer"}

// CheckExtra returns further lines of a commit's header. A final newline may be missing.
func CheckExtra(lines []byte) ([]byte, error) {
	if len(lines) == 0 {
		return nil, nil
	}
	invalid := func(format string, args ...any) error {
		return fault.InField("headers", fault.New(fault.Invalid, format, args...))
	}
	if lines[len(lines)-1] != '\n' {
		lines = append(slices.Clone(lines), '\n')
	}
	first := true
	for line := range bytes.Lines(lines) {
		keyword, _, hasValue := strings.Cut(string(line[:len(line)-1]), " ")
		switch {
		case bytes.IndexByte(line, 0) >= 0:
			return nil, invalid("a line contains a NUL byte")
		case len(line) == 1:
			return nil, invalid("a line is empty: continuation lines begin with a space")
		case keyword == "" && first:
			return nil, invalid("the first line begins with a space, like a continuation line")
		case keyword != "" && (!hasValue || strings.ContainsAny(keyword, "\t\v\f\r")):
			return nil, invalid("%.80q is not a line of a keyword, a space and a value", line)
		case slices.Contains(standardLines, keyword):
			return nil, invalid("a line %q is not allowed: it has its own field", keyword)
		}
		first = false
	}
	return lines, nil
}
