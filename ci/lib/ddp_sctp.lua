-- Has tshark read DDP over SCTP (RFC 5043): chunks with payload protocol identifier 16 begin with
-- a DDP-SSN, behind which its own dissector reads DDP and RDMAP; those with 17 are session control.
--
--   tshark -X lua_script:ci/lib/ddp_sctp.lua -r FILE -T fields -e ddp_sctp.ssn -e ddp_sctp.code ...

local segment = Proto("ddp_sctp", "DDP Segment Chunk")
local control = Proto("ddp_sctp_control", "DDP Stream Session Control")

local codes = {
    "Initiate", "Accept", "Reject", "Terminate",
    "Enhanced Initiate", "Enhanced Accept", "Enhanced Reject",
}
local ssn = ProtoField.uint16("ddp_sctp.ssn", "DDP-SSN")
local code = ProtoField.uint16("ddp_sctp.code", "Function Code", base.DEC, codes)
local depths = ProtoField.uint32("ddp_sctp.depths", "IRD and ORD", base.HEX)
local private_data = ProtoField.bytes("ddp_sctp.private_data", "Private Data")
segment.fields = { ssn }
control.fields = { code, depths, private_data }

local rdmap = Dissector.get("iwarp_ddp_rdmap")

function segment.dissector(chunk, info, tree)
    if chunk:len() < 2 then return 0 end
    tree:add(segment, chunk(0, 2)):add(ssn, chunk(0, 2))
    if chunk:len() > 2 then rdmap:call(chunk(2):tvb(), info, tree) end
    return chunk:len()
end

function control.dissector(chunk, info, tree)
    if chunk:len() < 4 then return 0 end
    local subtree = tree:add(control, chunk())
    local number, at = chunk(2, 2):uint(), 4
    subtree:add(ssn, chunk(0, 2))
    subtree:add(code, chunk(2, 2))
    -- RFC 6581 section 9
    if (number == 5 or number == 6) and chunk:len() >= 8 then
        subtree:add(depths, chunk(4, 4))
        at = 8
    end
    if chunk:len() > at then subtree:add(private_data, chunk(at)) end
    return chunk:len()
end

DissectorTable.get("sctp.ppi"):add(16, segment)
DissectorTable.get("sctp.ppi"):add(17, control)
