package gateway

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"
)

// hostKeyFiles are the host keys that there may be, named as by ssh-keygen(1) -A. The first is made if there is none.
var hostKeyFiles = []string{"ssh_host_ed25519_key", "ssh_host_ecdsa_key", "ssh_host_rsa_key"}

// LoadHostKeys reads the host keys in a directory, and makes one on the first run: clients remember it. They are files as ssh-keygen(1) writes
// them, without a passphrase, that nobody else can read.
func LoadHostKeys(dir string) (keys []ssh.Signer, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory for SSH host keys: %w", err)
	}
	for _, name := range hostKeyFiles {
		key, err := readHostKey(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read an SSH host key: %w", err)
		}
		keys = append(keys, key)
	}
	if len(keys) > 0 {
		return keys, nil
	}
	file := filepath.Join(dir, hostKeyFiles[0])
	if err := makeHostKey(file); err != nil {
		return nil, fmt.Errorf("make an SSH host key: %w", err)
	}
	key, err := readHostKey(file)
	return []ssh.Signer{key}, err
}

func readHostKey(path string) (ssh.Signer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("others can read %s (mode %#o); chmod 600 it, or make a new one if somebody may have", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if key.PublicKey().Type() != ssh.KeyAlgoRSA {
		return key, nil
	}
	signer, ok := key.(ssh.AlgorithmSigner)
	if !ok {
		return nil, fmt.Errorf("%s cannot sign", path)
	}
	return ssh.NewSignerWithAlgorithms(signer, []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}) // not with SHA-1
}

// makeHostKey writes a new key, durably: a machine that goes down after the first client has seen it comes back with it.
func makeHostKey(path string) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "packhorse")
	if err != nil {
		return err
	}
	if err := writeNew(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	wire, err := ssh.NewPublicKey(public)
	if err != nil {
		return err
	}
	return writeNew(path+".pub", ssh.MarshalAuthorizedKey(wire), 0o644)
}

// writeNew writes a whole file or none.
func writeNew(path string, text []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
