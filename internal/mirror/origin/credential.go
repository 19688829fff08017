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
