package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// exportLFS writes the LFS objects of a repository into a bare repository, and verifies them. Those that were set aside
// are ordinary ones there.
func exportLFS(ctx context.Context, b bucket.Bucket, id, dir string) error {
	var last lfs.OID
	return eachLFS(ctx, b, id, func(s storedObject) (err error) {
		if s.oid == last {
			return nil
		}
		last = s.oid
		path := filepath.Join(dir, lfsFile(s.oid))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		content, _, err := b.Open(ctx, s.Key, 0, -1)
		if err != nil {
			return err
		}
		defer content.Close()
		hash := sha256.New()
		if _, err := io.Copy(io.MultiWriter(f, hash), content); err != nil {
			return err
		}
		if sum := lfs.OID(hash.Sum(nil)); sum != s.oid {
			return fault.New(fault.Corrupt, "object %s is damaged: its SHA-256 is %s; %s", s.Key, sum, remedyRestore)
		}
		return nil
	})
}

// lfsFiles calls f with the path of each LFS object of a bare repository.
func lfsFiles(dir string, f func(id lfs.OID, path string, size int64) error) error {
	root := filepath.Join(dir, "lfs", "objects")
	err := filepath.WalkDir(root+"/.", func(path string, e fs.DirEntry, err error) error { // it may be a symbolic link
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		id, err := lfs.ParseOID(e.Name())
		if err != nil || path != filepath.Join(dir, lfsFile(id)) {
			return nil // a temporary file
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		return f(id, path, info.Size())
	})
	if _, rootErr := os.Lstat(root); errors.Is(rootErr, fs.ErrNotExist) {
		return nil
	}
	return err
}

// lfs uploads the LFS objects of a bare repository.
func (u *uploader) lfs(ctx context.Context, dir string) error {
	return lfsFiles(dir, func(id lfs.OID, path string, _ int64) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		size, sum, err := sumOf(ctx, f)
		if err != nil {
			return err
		}
		if sum != replog.Sum(id) {
			return fault.New(fault.Corrupt, "its LFS object %s is damaged: replace the file, or remove it and upload it again",
				path)
		}
		key := u.prefix + lfsPrefix + id.String()
		u.keys, u.bytes = append(u.keys, key), u.bytes+size
		return u.bucket.Put(ctx, key, f, size, id)
	})
}

// lfs counts the LFS objects that are not set aside. No record names them. With Deep it compares them with their IDs.
func (r *repositoryCheck) lfs(ctx context.Context) error {
	return eachLFS(ctx, r.bucket, r.id, func(s storedObject) error {
		if s.isAside {
			return nil
		}
		r.count.Objects++
		r.count.Bytes += s.Size
		if !r.options.Deep {
			return nil
		}
		sum, err := checksum(ctx, r.bucket, s.Key)
		switch {
		case errors.Is(err, bucket.ErrNotFound): // the repository was deleted meanwhile
			return nil
		case err != nil:
			return err
		case sum != replog.Sum(s.oid):
			r.problem(s.Key, "delete it, and ten minutes later let a client upload it again: git lfs push --all",
				"its SHA-256 is %s", sum)
		}
		return nil
	})
}
