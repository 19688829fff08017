package gitssh

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// hostKeyKinds are the kinds of host keys, in files named like those of ssh-keygen(1) -A. Clients choose; some support
// only one kind.
var hostKeyKinds = []struct {
	file     string
	generate func() (crypto.PrivateKey, error)
}{
	{"ssh_host_ed25519_key", func() (crypto.PrivateKey, error) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}},
	{"ssh_host_ecdsa_key", func() (crypto.PrivateKey, error) {
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}},
	// This one takes about a second.
	{"ssh_host_rsa_key", func() (crypto.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, rsaBits) }},
}

// rsaBits is ssh-keygen(1)'s default.
const rsaBits = 3072

// LoadHostKeys reads the host keys in a directory: files as ssh-keygen(1) writes them, without a passphrase, readable
// only by their owner. If there are none, it makes all kinds. With add it also makes the missing kinds, and only warns
// if it cannot. It never changes an existing key.
func LoadHostKeys(dir string, add bool, log *slog.Logger) (keys []ssh.Signer, err error) {
	if err := makeHostKeyDir(dir); err != nil {
		return nil, fmt.Errorf("make the directory for SSH host keys: %w", err)
	}
	found := make([]ssh.Signer, len(hostKeyKinds))
	for i, kind := range hostKeyKinds {
		key, err := readHostKey(filepath.Join(dir, kind.file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read an SSH host key: %w", err)
		}
		found[i] = key
	}
	none := !slices.ContainsFunc(found, func(key ssh.Signer) bool { return key != nil })
	for i, kind := range hostKeyKinds {
		if found[i] == nil && (add || none) {
			key, err := makeHostKey(filepath.Join(dir, kind.file), kind.generate)
			switch {
			case err == nil:
				log.Info("SSH host key created", "file", kind.file, "fingerprint",
					ssh.FingerprintSHA256(key.PublicKey()))
				found[i] = key
			case none:
				return nil, fmt.Errorf("make an SSH host key: %w", err)
			default:
				log.Warn("cannot create an SSH host key; clients that need this kind cannot connect",
					"file", kind.file, "error", err)
			}
		}
		if found[i] != nil {
			keys = append(keys, found[i])
		}
	}
	return keys, nil
}

// makeHostKeyDir makes the directory durably.
func makeHostKeyDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(dir))
}

func readHostKey(path string) (ssh.Signer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s is readable by other users (mode %#o): "+
			"chmod 600 it, or replace it if it may be compromised", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := parseHostKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// parseHostKey reads the text of a private key.
func parseHostKey(text []byte) (ssh.Signer, error) {
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, err
	}
	if key.PublicKey().Type() != ssh.KeyAlgoRSA {
		return key, nil
	}
	signer, ok := key.(ssh.AlgorithmSigner)
	if !ok {
		return nil, errors.New("the key cannot sign")
	}
	return ssh.NewSignerWithAlgorithms(signer, []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}) // not with SHA-1
}

// makeHostKey makes a new key and its files durably: a machine that crashes after the first client has seen the key
// comes back with the same key.
func makeHostKey(path string, generate func() (crypto.PrivateKey, error)) (ssh.Signer, error) {
	private, err := generate()
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "packhorse")
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(block)
	key, err := parseHostKey(text)
	if err != nil {
		return nil, err
	}
	readable := func(f *os.File) error { return f.Chmod(0o644) }
	if err := disk.ReplaceFile(path+".pub", ssh.MarshalAuthorizedKey(key.PublicKey()), readable); err != nil {
		return nil, err
	}
	return key, disk.ReplaceFile(path, text)
}
