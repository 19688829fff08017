package origin

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// TokenUser is the default of the user name that is sent with a token. GitHub prescribes it, and other hosts accept
// any.
const TokenUser = "x-access-token"

// fileSource is a credential in a file, which is read again when it changes.
type fileSource struct{ *credfile.Private[Secret] }

// Authorization implements Source.
func (s fileSource) Authorization(context.Context) (Secret, error) { return s.Get(), nil }

// basic returns the credential for a user and a password (RFC 7617).
func basic(user, password string) (Secret, error) {
	for _, c := range []byte(user + password) {
		if c < ' ' || c == 0x7f {
			return Secret{}, errors.New("control characters in the user name or password")
		}
	}
	if password == "" || strings.Contains(user, ":") {
		return Secret{}, errors.New("no password, or a colon in the user name")
	}
	return node.NewSecret("Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))), nil
}

// NewTokenFile returns the token in a file as a credential. The file has one word and no permissions for other users.
// user is the user name that belongs to the token. Empty means TokenUser.
func NewTokenFile(file, user string, log *slog.Logger) (Source, error) {
	if user == "" {
		user = TokenUser
	}
	p, err := credfile.LoadPrivate("token of the origin", file, func(text []byte) (Secret, error) {
		words := strings.Fields(string(text))
		if len(words) != 1 {
			return Secret{}, fmt.Errorf("it has %d words, want the token as the only one", len(words))
		}
		return basic(user, words[0])
	}, log)
	return fileSource{p}, err
}

// NewNetrc returns the credential for a host in a file in the format of netrc(5). The file has no permissions for other
// users.
func NewNetrc(file, host string, log *slog.Logger) (Source, error) {
	p, err := credfile.LoadPrivate("netrc file", file, func(text []byte) (Secret, error) {
		user, password, ok := netrcLogin(string(text), host)
		if !ok {
			return Secret{}, fmt.Errorf("no \"machine %s\" with a login and a password", host)
		}
		return basic(user, password)
	}, log)
	return fileSource{p}, err
}

// netrcLogin returns the first complete entry for a host, or the entry "default". Entries after it are ignored, as in
// netrc(5).
func netrcLogin(text, host string) (user, password string, ok bool) {
	matches := false
	words := netrcWords(text)
	next := func() (word string) {
		if len(words) > 0 {
			word, words = words[0], words[1:]
		}
		return word
	}
	for len(words) > 0 {
		switch next() {
		case "machine":
			matches, user, password = strings.EqualFold(next(), host), "", ""
		case "default":
			matches, user, password = true, "", ""
		case "login":
			user = next()
		case "password":
			password = next()
		case "account":
			next()
		}
		if matches && user != "" && password != "" {
			return user, password, true
		}
	}
	return "", "", false
}

// netrcWords returns the words of a netrc file without comments and macros. A macro ends with an empty line. A word in
// quotation marks may contain spaces.
func netrcWords(text string) (words []string) {
	inMacro := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if inMacro {
			inMacro = line != ""
			continue
		}
		for line != "" && line[0] != '#' {
			word := line
			if rest, quoted := strings.CutPrefix(line, `"`); quoted {
				word, line, _ = strings.Cut(rest, `"`)
			} else {
				if end := strings.IndexAny(line, " \t"); end >= 0 {
					word = line[:end]
				}
				line = line[len(word):]
			}
			if inMacro = word == "macdef"; inMacro {
				break
			}
			words = append(words, word)
			line = strings.TrimLeft(line, " \t")
		}
	}
	return words
}
