package edit

import (
	"bytes"
	"crypto/rand"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"os"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/git"
)

// Signer signs commits with an SSH key, as git does with gpg.format=ssh. It is safe for concurrent use.
type Signer struct{ key ssh.Signer }

// LoadSigner reads a private key from a file. The key must not have a passphrase.
func LoadSigner(file string) (*Signer, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: not a private SSH key without a passphrase: %w", file, err)
	}
	return &Signer{key}, nil
}

const (
	signedNamespace = "git"
	signedHash      = "sha512"
)

// sign returns the signature of data in OpenSSH's format (PROTOCOL.sshsig), as lines.
func (s *Signer) sign(data []byte) ([]byte, error) {
	hash := sha512.Sum512(data)
	signed := append([]byte("SSHSIG"), ssh.Marshal(struct{ Namespace, Reserved, HashName, Hash string }{
		signedNamespace, "", signedHash, string(hash[:])})...)
	var signature *ssh.Signature
	var err error
	if rsa, ok := s.key.(ssh.AlgorithmSigner); ok && s.key.PublicKey().Type() == ssh.KeyAlgoRSA {
		signature, err = rsa.SignWithAlgorithm(rand.Reader, signed, ssh.KeyAlgoRSASHA512)
	} else {
		signature, err = s.key.Sign(rand.Reader, signed)
	}
	if err != nil {
		return nil, fmt.Errorf("sign a commit: %w", err)
	}
	blob := append([]byte("SSHSIG"), ssh.Marshal(struct {
		Version                                             uint32
		PublicKey, Namespace, Reserved, HashName, Signature string
	}{1, string(s.key.PublicKey().Marshal()), signedNamespace, "", signedHash, string(ssh.Marshal(signature))})...)
	const width = 70 // as ssh-keygen
	var b bytes.Buffer
	b.WriteString("-----BEGIN SSH SIGNATURE-----\n")
	for text := base64.StdEncoding.EncodeToString(blob); text != ""; {
		n := min(len(text), width)
		b.WriteString(text[:n] + "\n")
		text = text[n:]
	}
	b.WriteString("-----END SSH SIGNATURE-----\n")
	return b.Bytes(), nil
}

// header returns the lines of a commit's header with the signature of the commit without them.
func (s *Signer) header(format git.ObjectFormat, commit []byte) ([]byte, error) {
	signature, err := s.sign(commit)
	if err != nil {
		return nil, err
	}
	keyword := "gpgsig"
	if format == git.SHA256 {
		keyword = "gpgsig-sha256"
	}
	var b bytes.Buffer
	for line := range bytes.Lines(signature) {
		b.WriteString(keyword + " ")
		b.Write(line)
		keyword = "" // continuation lines begin with a space
	}
	return b.Bytes(), nil
}
