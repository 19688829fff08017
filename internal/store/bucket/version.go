package bucket

import (
	"context"
	"io"
	"strings"

	"github.com/minio/minio-go/v7"
)

var _ Versioned = (*S3)(nil)

// Versions implements Versioned.
func (s *S3) Versions(ctx context.Context, prefix string) (list []Version, err error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	options := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true, WithVersions: true}
	for object := range s.reads.ListObjectsIter(inner, s.bucket, options) {
		if object.Err != nil {
			return nil, s.wrap(ctx, "list versions", prefix, object.Err)
		}
		list = append(list, Version{Key: strings.TrimPrefix(object.Key, s.prefix), ID: object.VersionID,
			IsLatest: object.IsLatest, IsMarker: object.IsDeleteMarker})
	}
	return list, s.wrap(ctx, "list versions", prefix, ctx.Err())
}

// OpenVersion implements Versioned.
func (s *S3) OpenVersion(ctx context.Context, v Version) (io.ReadCloser, error) {
	var options minio.GetObjectOptions
	if !v.IsLatest { // in a bucket without versions it may have no valid ID
		options.VersionID = v.ID
	}
	r, _, _, err := s.reads.GetObject(ctx, s.bucket, s.prefix+v.Key, options)
	if err != nil {
		return nil, s.wrap(ctx, "open version", v.Key, err)
	}
	return r, nil
}

// DeleteVersion implements Versioned.
func (s *S3) DeleteVersion(ctx context.Context, v Version) error {
	small, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	err := repeat(small, func() error {
		return s.reads.RemoveObject(small, s.bucket, s.prefix+v.Key, minio.RemoveObjectOptions{VersionID: v.ID})
	})
	return s.wrap(ctx, "delete version", v.Key, err)
}
