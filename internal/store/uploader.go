package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// uploader uploads the files of one repository.
type uploader struct {
	bucket bucket.Bucket
	prefix string // of the repository's keys
	keys   []string
	bytes  int64
}

// uploader returns an uploader for the files of the repository.
func (r *repository) uploader() *uploader {
	return &uploader{bucket: r.store.bucket, prefix: reposPrefix + r.id + "/"}
}

// file uploads a file under a key relative to the repository.
func (u *uploader) file(ctx context.Context, key, path string) (replog.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return replog.File{}, err
	}
	defer f.Close()
	size, sum, err := sumOf(ctx, f)
	if err != nil {
		return replog.File{}, fmt.Errorf("read %s: %w", path, err)
	}
	file := replog.File{Ext: filepath.Ext(key), Bytes: size, SHA256: sum}
	u.keys, u.bytes = append(u.keys, u.prefix+key), u.bytes+size
	return file, u.bucket.Put(ctx, u.prefix+key, f, size, file.SHA256)
}

// pack uploads a pack, its index and its extra files, under keys that only this attempt uses. base is the path of the
// pack without its extension.
func (u *uploader) pack(ctx context.Context, base, txn string) (replog.Pack, error) {
	p := replog.Pack{Key: replog.PackKey(filepath.Base(base), txn)}
	pack, err := os.Open(base + ".pack")
	if err == nil {
		defer pack.Close()
		p.Objects, err = countObjects(pack)
	}
	if err != nil {
		return p, fault.Wrap(fault.Corrupt, "the pack "+base+".pack cannot be read", err)
	}
	for _, ext := range []string{".pack", ".idx", ".rev", ".bitmap"} {
		f, err := u.file(ctx, p.Key+ext, base+ext)
		switch {
		case errors.Is(err, fs.ErrNotExist) && ext != ".pack" && ext != ".idx":
		case err != nil:
			return p, err
		case ext == ".pack":
			p.Bytes, p.SHA256 = f.Bytes, f.SHA256
		case ext == ".idx":
			p.IdxBytes, p.IdxSHA256 = f.Bytes, f.SHA256
		default:
			p.Extra = append(p.Extra, f)
		}
	}
	return p, nil
}

// countObjects returns the number of objects of a pack (gitformat-pack(5), the header).
func countObjects(pack io.ReaderAt) (int64, error) {
	var header [12]byte
	if _, err := pack.ReadAt(header[:], 0); err != nil {
		return 0, err
	}
	if string(header[:4]) != "PACK" {
		return 0, errors.New("no pack header")
	}
	return int64(binary.BigEndian.Uint32(header[8:])), nil
}
