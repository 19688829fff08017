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

// sshCommand is what a client asks to be run. Nothing is: it names a service and a repository.
type command struct {
	service protocol.Service
	repo    git.RepoPath
}

// maxSSHCommand bounds a command in bytes: a path of the greatest length, each byte of it quoted.
const maxCommand = 6 * git.MaxRepoPath

// notServed are commands of git that others serve over SSH, with what to tell who asks for them.
var notServed = map[string]string{
	"git-upload-archive":   "archives are not made over SSH",
	"git-lfs-authenticate": "Git LFS is not served over SSH",
	"git-lfs-transfer":     "Git LFS is not served over SSH",
	"git-shell":            "there is no shell here",
	"scp":                  "files are not copied here",
	"rsync":                "files are not copied here",
}

// parseSSHCommand reads a command: a service and one path, in words quoted as for a shell. Git writes the path in
// single quotes (sq_quote_buf in its quote.c), some clients in double quotes or none. There is no shell: what would
// have one do more than take a quote away is refused.
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
	case protocol.UploadPack, protocol.ReceivePack:
		c.service = service
	default:
		if why, ok := notServed[word]; ok {
			return c, fault.New(fault.Invalid, "%s; this server takes git-upload-pack and git-receive-pack alone", why)
		}
		return c, fault.New(fault.Invalid,
			"%.40q is no command here; this server takes git-upload-pack and git-receive-pack alone", word)
	}
	if bad != nil {
		return c, fault.New(fault.Invalid, "%s: %v; put the path in single quotes", c.service, bad)
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

// String is the command as git writes it.
func (c command) String() string {
	r := strings.NewReplacer("'", `'\''`, "!", `'\!'`)
	return string(c.service) + " '" + r.Replace(c.repo.String()) + "'"
}

// plainBytes are those beside letters and digits that need no quotes. To some shell, somewhere in a word, the others
// mean something else.
const plainBytes = "-_./:@%+,"

// shellWords splits a command into words as sh(1) does (POSIX, Shell Command Language, 2.2 Quoting). It fails where a
// shell would do anything else: an expansion, a pattern, a second command, a redirection, a comment. It returns the
// words before that place as well.
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
				return words, fmt.Errorf("%q without quotes has a meaning to a shell, and there is none", c)
			}
			word.WriteString(part)
		}
		words = append(words, word.String())
	}
}

// isPlain reports whether a byte outside quotes stands for itself, wherever it is in a word.
func isPlain(c byte) bool {
	return c >= utf8.RuneSelf || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte(plainBytes, c) >= 0
}

// doubleQuoted reads to the end of double quotes, whose first one was read, and returns what follows. A backslash takes
// their meaning from four characters, and stands for itself before others (POSIX, 2.2.3 Double-Quotes).
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
			return "", "", fmt.Errorf("%q in double quotes has a meaning to a shell, and there is none", c)
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
