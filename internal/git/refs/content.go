package refs

import (
	"bytes"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// looseLimit is the maximum size of a loose ref in bytes: a symbolic ref with the longest name, and some white space.
const looseLimit = git.MaxRefName + 64

type contentKind uint8

const (
	broken contentKind = iota
	odd                // like broken, but git accepts it as the content of HEAD
	direct
	symbolic
	deleted // of a Source: the ref does not exist, although the base has it
)

// content is the content of a loose ref or HEAD.
type content struct {
	link git.RefName // symbolic: its target, which may be symbolic itself
	id   git.ObjectID
	kind contentKind
}

// IsHead reports whether git would accept a file with this beginning as the HEAD of a repository. That is a symbolic
// ref into refs/, or an object ID of any format. The first 256 bytes suffice.
func IsHead(b []byte) bool {
	if target, ok := bytes.CutPrefix(b, []byte("ref:")); ok {
		return bytes.HasPrefix(bytes.TrimLeft(target, whiteSpace), []byte("refs/"))
	}
	n := git.SHA1.HexSize() // longer IDs begin with as many digits
	if len(b) < n {
		return false
	}
	_, err := git.ParseObjectID(b[:n])
	return err == nil
}

// parseLoose reads the first looseLimit bytes of a loose ref, by the rules of gitrepository-layout and
// git-symbolic-ref.
func parseLoose(b []byte, format git.ObjectFormat) content {
	c := parseText(b, format)
	if c.kind == broken && IsHead(b) {
		c.kind = odd
	}
	return c
}

func parseText(b []byte, format git.ObjectFormat) content {
	if rest, ok := bytes.CutPrefix(b, []byte("ref:")); ok {
		if len(b) >= looseLimit {
			return content{}
		}
		return linkTo(string(bytes.Trim(rest, whiteSpace)))
	}
	n := format.HexSize()
	if len(b) < n || len(b) > n && strings.IndexByte(whiteSpace, b[n]) < 0 {
		return content{}
	}
	id, err := git.ParseObjectID(b[:n])
	if err != nil || id.IsZero() {
		return content{}
	}
	return content{id: id, kind: direct}
}

// parseSymlink parses the text of a symbolic link at the path of a loose ref.
func parseSymlink(text string) content {
	if !strings.HasPrefix(text, "refs/") {
		return content{}
	}
	if c := linkTo(text); c.kind != broken {
		return c
	}
	return content{kind: odd}
}

// whiteSpace is the white space that Git accepts.
const whiteSpace = " \t\n\r"

// isHead reports whether git would accept this content as a HEAD. Otherwise git does not find a repository.
func (c content) isHead() bool {
	return c.kind == direct || c.kind == odd || c.kind == symbolic && strings.HasPrefix(string(c.link), "refs/")
}

func linkTo(name string) content {
	target, err := git.ParseRefName(name)
	if err != nil {
		return content{}
	}
	return content{link: target, kind: symbolic}
}

// isRefName is git.ParseRefName for names in packed-refs. It is fast for ordinary names.
func isRefName(name []byte) bool {
	const prefix = "refs/"
	if !bytes.HasPrefix(name, []byte(prefix)) || len(name) > git.MaxRefName {
		return false
	}
	last := byte('/') // the byte before
	for i := len(prefix); i < len(name); i++ {
		c := name[i]
		switch {
		case isAlphanumeric(c) || c >= 0x80 || c == '-' || c == '_':
		case c == '/' && last != '/':
		case c == '.' && isAlphanumeric(last) && i+1 < len(name) && '0' <= name[i+1] && name[i+1] <= '9':
		default:
			return git.IsSafeRefName(string(name))
		}
		last = c
	}
	return last != '/'
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
