package auth

import (
	"context"
	"net/netip"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// AsksAboutKeys tells whether there is a hook that may know SSH keys.
func (a *Auth) AsksAboutKeys() bool { return a.o.Hook != nil }

// Key asks the hook whom an SSH key proves, for a login name that may say which of several it is. Clients offer keys that they need not have, and
// several in turn: no guess is counted. Errors: Unauthenticated, Unavailable, Exhausted.
func (a *Auth) Key(ctx context.Context, login string, key ssh.PublicKey, from netip.Addr) (Identity, error) {
	if a.o.Hook == nil {
		return Identity{}, unknownKey("the key is not known")
	}
	if err := checkStrength(key); err != nil {
		return Identity{}, err
	}
	if _, ok := key.(*ssh.Certificate); ok {
		return Identity{}, unknownKey("the certificate is signed by somebody who is not trusted")
	}
	q := question{Question: identify, Client: from.String(), Credential: &offered{
		Type: "key", User: login, Key: strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(key)), "\n"),
	}}
	id, err := a.o.Hook.askWho(ctx, q, nil)
	if err == nil {
		id.Address = from.String()
		id.Credential = ssh.FingerprintSHA256(key)
		if id.Anonymous() {
			err = fault.New(fault.Unauthenticated, "the key is not known")
		}
	}
	return id, err
}
