package auth

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Some clients of Git LFS send transfers with nothing but what the answer to a batch contains. So the URLs of its
// actions have tokens. Such a token is the caller's own Authorization header and an expiry time, encrypted and
// authenticated with a key from the secret (AES-GCM). It is only valid for one repository, operation and action.
//
// The server uses the header as if the client had sent it. So the end of a credential ends its tokens, and an origin
// gets the caller's own credential.

// maxURLCredential is the maximum length of an Authorization header in the URL of an action in bytes. Proxies refuse
// URLs of more than 8 KiB.
const maxURLCredential = 4 << 10

// URLs returns a function that makes the token for the URL of an action for the sender of an Authorization header. It
// is nil if the header does not fit into a URL. The function is not safe for concurrent use.
func (t *LFSTokens) URLs(authorization string, repo git.RepoPath, op Operation) func(action string) string {
	if len(authorization) > maxURLCredential {
		return nil
	}
	key := t.urlKey()
	text := binary.BigEndian.AppendUint64(nil, uint64(t.now().Add(LFSTokenLife).Unix()))
	text = append(text, authorization...)
	return func(action string) string {
		return tokenPrefix + tokenEncoding.EncodeToString(key.Seal(nil, nil, text, urlData(repo, op, action)))
	}
}

// Open returns the Authorization header in the token of a URL. The error is Unauthenticated.
func (t *LFSTokens) Open(token string, repo git.RepoPath, op Operation, action string) (string, error) {
	rest, _ := strings.CutPrefix(token, tokenPrefix)
	text, err := tokenEncoding.DecodeString(rest)
	if err == nil {
		text, err = t.urlKey().Open(nil, nil, text, urlData(repo, op, action))
	}
	switch {
	case err != nil || len(text) < 8:
		return "", fault.New(fault.Unauthenticated, "the token in this URL is wrong, or for another action")
	case !t.now().Before(time.Unix(int64(binary.BigEndian.Uint64(text)), 0)):
		return "", fault.New(fault.Unauthenticated, "the token in this URL has expired: request the object again")
	}
	return string(text[8:]), nil
}

func (t *LFSTokens) urlKey() cipher.AEAD {
	block, _ := aes.NewCipher(t.mac(forURLs, nil)) // the length is valid
	key, _ := cipher.NewGCMWithRandomNonce(block)  // never fails for AES
	return key
}

// urlData is what the token of a URL is valid for.
func urlData(repo git.RepoPath, op Operation, action string) []byte {
	return []byte(strings.Join(pathOf(repo), "/") + "\x00" + op.String() + "\x00" + action)
}
