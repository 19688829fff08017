package gitssh

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// command is the command of a client. It is not run: it names a service and a repository.
type command struct {
	service protocol.Service
	repo    git.RepoPath
	upload  bool // of Git LFS: the client sends objects, or locks files
}

// The commands of Git LFS (its docs/api/authentication.md and docs/proposals/ssh_adapter.md).
const (
	lfsAuthenticate protocol.Service = "git-lfs-authenticate"
	lfsTransfer     protocol.Service = "git-lfs-transfer"
)

// maxCommand is the maximum length of a command in bytes: a path of the maximum length with each byte quoted.
const maxCommand = 6 * git.MaxRepoPath

// notServed are git's other commands over SSH, with the message for the client.
var notServed = map[string]string{
	"git-shell": "shells are not supported",
	"scp":       "file copies are not supported",
	"rsync":     "file copies are not supported",
}

// parseCommand parses a command: a service and one path, in words quoted as for a shell. Git writes the path in single
// quotes (sq_quote_buf in its quote.c), some clients in double quotes or none. There is no shell: text that a shell
// would expand or interpret is refused. Commands of Git LFS have a second word, download or upload.
func parseCommand(s string) (c command, err error) {
	if len(s) > maxCommand {
		return c, fault.New(fault.Invalid, "the command is longer than %d bytes", maxCommand)
	}
	words, bad := shellWords(s)
	word := ""
	if len(words) > 0 {
		word, words = words[0], words[1:]
	}
	if word == "git" && len(words) > 0 { // as some clients say
		word, words = word+"-"+words[0], words[1:]
	}
	switch service := protocol.Service(word); service {
	case protocol.UploadPack, protocol.ReceivePack, uploadArchive, lfsAuthenticate, lfsTransfer:
		c.service = service
	default:
		if reason, ok := notServed[word]; ok {
			return c, fault.New(fault.Invalid, "%s; only fetches, pushes, archives and Git LFS are", reason)
		}
		return c, fault.New(fault.Invalid,
			"unknown command %.40q: only git-upload-pack, git-receive-pack, git-upload-archive and those of Git LFS are "+
				"supported", word)
	}
	if bad != nil {
		return c, fault.New(fault.Invalid, "%s: %v; put the path in single quotes", c.service, bad)
	}
	if c.isLFS() {
		if len(words) != 2 || words[1] != "download" && words[1] != "upload" {
			return c, fault.New(fault.Invalid, "%s takes a path, and then download or upload", c.service)
		}
		c.upload, words = words[1] == "upload", words[:1]
	}
	if len(words) != 1 {
		return c, fault.New(fault.Invalid, "%s takes one path and no options; put a path with spaces in single quotes",
			c.service)
	}
	path := words[0]
	if strings.HasPrefix(path, "-") {
		return c, fault.New(fault.Invalid, "%s takes no options", c.service)
	}
	c.repo, err = gateway.ParseRepo(path)
	return c, err
}

// isLFS reports whether the command is one of Git LFS.
func (c command) isLFS() bool { return c.service == lfsAuthenticate || c.service == lfsTransfer }

// String returns the command as git writes it.
func (c command) String() string {
	r := strings.NewReplacer("'", `'\''`, "!", `'\!'`)
	text := string(c.service) + " '" + r.Replace(c.repo.String()) + "'"
	switch {
	case c.upload:
		text += " upload"
	case c.isLFS():
		text += " download"
	}
	return text
}

// plainBytes are the bytes that need no quotes, beside letters and digits. Others have a meaning to some shell.
const plainBytes = "-_./:@%+,"

// shellWords splits a command into words like sh(1) (POSIX, Shell Command Language, 2.2 Quoting). It fails where a
// shell would do more: an expansion, a pattern, a second command, a redirection, a comment. It also returns the words
// before that place.
func shellWords(s string) (words []string, err error) {
	for {
		if s = strings.TrimLeft(s, " \t"); s == "" {
			return words, nil
		}
		var word strings.Builder
		for s != "" && s[0] != ' ' && s[0] != '\t' {
			part := s[:1]
			switch c := s[0]; {
			case c == '\'':
				end := strings.IndexByte(s[1:], '\'')
				if end < 0 {
					return words, errOpenQuote
				}
				part, s = s[1:1+end], s[end+2:]
			case c == '"':
				if part, s, err = doubleQuoted(s[1:]); err != nil {
					return words, err
				}
			case c == '\\':
				if len(s) < 2 || s[1] == '\n' {
					return words, errBackslash
				}
				part, s = s[1:2], s[2:]
			case isPlain(c), c == '~' && strings.HasSuffix(word.String(), "/"):
				s = s[1:]
			default:
				return words, fmt.Errorf("%q without quotes: there is no shell", c)
			}
			word.WriteString(part)
		}
		words = append(words, word.String())
	}
}

// isPlain reports whether a byte outside quotes always stands for itself.
func isPlain(c byte) bool {
	return c >= utf8.RuneSelf || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte(plainBytes, c) >= 0
}

// doubleQuoted reads to the end of double quotes whose first quote was read, and returns the remaining text. A
// backslash escapes four characters, and stands for itself before others (POSIX, 2.2.3 Double-Quotes).
func doubleQuoted(s string) (text, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c, next := s[i], byte(0)
		if i+1 < len(s) {
			next = s[i+1]
		}
		switch {
		case c == '"':
			return b.String(), s[i+1:], nil
		case c == '$', c == '`':
			return "", "", fmt.Errorf("%q in double quotes: there is no shell", c)
		case c == '\\' && next == '\n':
			return "", "", errBackslash
		case c == '\\' && strings.IndexByte("$`\"\\", next) >= 0:
			i++
			c = next
		}
		b.WriteByte(c)
	}
	return "", "", errOpenQuote
}

var (
	errOpenQuote = errors.New("a quote is not closed")
	errBackslash = errors.New("a line ends with a backslash")
)
