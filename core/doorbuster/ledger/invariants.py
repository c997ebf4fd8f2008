"""stub"""
import msgspec
class Report(msgspec.Struct, frozen=True):
    x: int = 0
def check(*a, **k): return Report()
