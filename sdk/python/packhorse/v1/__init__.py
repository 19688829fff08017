"""The messages of proto/packhorse/v1."""

from packhorse.v1.archive_pb2 import *
from packhorse.v1.commit_pb2 import *
from packhorse.v1.diff_pb2 import *
from packhorse.v1.event_pb2 import *
from packhorse.v1.fault_pb2 import *
from packhorse.v1.history_pb2 import *
from packhorse.v1.merge_pb2 import *
from packhorse.v1.object_pb2 import *
from packhorse.v1.ref_pb2 import *
from packhorse.v1.repository_pb2 import *
from packhorse.v1.version_pb2 import *
from packhorse.v1.webhook_pb2 import *
